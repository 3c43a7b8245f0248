"""Two ways to keep many reads of rows in flight: Linux asynchronous I/O, which bypasses the page cache, and threads.

An asynchronous read costs a third of the CPU time of a read in a thread, but Linux reads asynchronously only from files
that bypass the page cache, and only on file systems that support it, such as ext4 and XFS.
"""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Protocol

import numpy as np

from pipeline.kernels.in_flight import (
    IN_FLIGHT_WORDS,
    STATE_WORDS,
    UNFINISHED,
    WAIT_SECONDS,
    close_context,
    open_context,
    read_in_flight,
)
from pipeline.kernels.read_rows import PAGE_BYTES, SCRATCH_BYTES, make_scratch, read_rows
from pipeline.machine.limits import aligned_empty
from pipeline.records import I32, I64, U32

NUM_READERS = 64
"""Number of reader threads. After its first read, each has a scratch buffer of SCRATCH_BYTES: 64 MiB in total."""
PARTS_PER_READER = 4
MIN_READER_ROWS = 16
LARGE_PART = 256
"""Minimum number of rows per part if a reader gets several parts. A part costs 10 us of Python time, as much as reading
15 rows from memory."""
NUM_IN_FLIGHT = 128
BUFFERS_BYTES = NUM_READERS * SCRATCH_BYTES
"""Total size of the read buffers in bytes, either way, unless a row takes more than 508 KiB."""


class Reads(Protocol):
    """A way to read rows."""

    def read(self, files_N: I32, offsets_N: I64, to_N: I64, out_UW: U32) -> tuple[int, int]:
        """Read rows, sorted by file and offset, like `read_rows`. Returns the first row that could not be read and the
        reason, or (-1, 0). Only one thread at a time may call it."""

    def close(self) -> None: ...


def reads_of(row_bytes: int, max_gap: int, direct: bool) -> Reads:
    """Choose the way to read files that are opened with O_DIRECT if `direct`, else without it. Wanted rows up to
    `max_gap` bytes apart are read together."""
    if direct and (context := open_context(NUM_IN_FLIGHT)):
        return ReadsInFlight(context, row_bytes, max_gap)
    return ReadsByThreads(row_bytes, max_gap, PAGE_BYTES if direct else 1)


class ReadsInFlight:
    """Up to NUM_IN_FLIGHT reads at once, made by the calling thread."""

    def __init__(self, context: int, row_bytes: int, max_gap: int) -> None:
        self._max_gap = max_gap
        pages = max(BUFFERS_BYTES // NUM_IN_FLIGHT // PAGE_BYTES, row_bytes // PAGE_BYTES + 2)
        self._buffers_RB = aligned_empty((NUM_IN_FLIGHT, pages * PAGE_BYTES), np.uint8, PAGE_BYTES)
        self._work = np.empty(NUM_IN_FLIGHT * IN_FLIGHT_WORDS, np.int64)
        self._context = context
        # A leaked context would count against fs.aio-max-nr until the process ends.
        self._close = weakref.finalize(self, close_context, context)
        self._close.atexit = False
        self._busy = threading.Lock()
        """Held during a read, so that `close` in another thread waits for its end."""

    def read(self, files_N: I32, offsets_N: I64, to_N: I64, out_UW: U32) -> tuple[int, int]:
        """`Reads.read`. Raises RuntimeError after `close`."""
        with self._busy:
            if not self._close.alive:
                raise RuntimeError("rows cannot be read after the log was closed")
            state = np.zeros(STATE_WORDS, np.int64)
            try:
                while True:
                    row, why = read_in_flight(
                        self._context, files_N, offsets_N, to_N, out_UW, self._buffers_RB, self._max_gap, self._work,
                        state,
                    )  # fmt: skip
                    if why != UNFINISHED:
                        return row, why
            except BaseException:
                # Closing waits for the reads in flight, perhaps forever. Until then the thread keeps the buffers, into
                # which the system writes.
                closing = threading.Thread(target=self._end, daemon=True)
                closing.start()
                closing.join(WAIT_SECONDS)
                raise

    def _end(self) -> None:
        self._close()

    def close(self) -> None:
        with self._busy:
            self._close()


class ReadsByThreads:
    """One read at a time in each of NUM_READERS threads."""

    def __init__(self, row_bytes: int, max_gap: int, alignment: int) -> None:
        self._row_bytes, self._max_gap, self._alignment = row_bytes, max_gap, alignment
        self._threads = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="log")
        self._scratch = threading.local()

    def read(self, files_N: I32, offsets_N: I64, to_N: I64, out_UW: U32) -> tuple[int, int]:
        bounds_P = part_bounds(np.flatnonzero(np.diff(files_N, prepend=-1)), len(files_N))
        parts = iter(list(pairwise(bounds_P.tolist())))

        def take_parts() -> tuple[int, int]:
            scratch = self._my_scratch()
            # Parts are taken in order, so all parts before the first bad row have been taken and read.
            for begin, end in parts:
                mine = slice(begin, end)
                failed, why = read_rows(
                    files_N[mine], offsets_N[mine], to_N[mine], out_UW, scratch, self._max_gap, self._alignment
                )
                if why:
                    return begin + failed, why
            return -1, 0

        reading = [self._threads.submit(take_parts) for _ in range(min(NUM_READERS, len(bounds_P) - 1))]
        wait(reading)
        results = [future.result() for future in reading]
        return min((result for result in results if result[1]), default=(-1, 0))

    def _my_scratch(self) -> np.ndarray:
        if not hasattr(self._scratch, "buffer"):
            self._scratch.buffer = make_scratch(self._row_bytes)
        return self._scratch.buffer

    def close(self) -> None:
        self._threads.shutdown()


def part_bounds(firsts_C: I64, num_rows: int) -> I64:
    """First row of each part that a free reader takes, then `num_rows`. Chunks begin at rows `firsts_C`.

    With at least NUM_READERS chunks, no chunk is divided: one reader then reads a file sequentially, an access pattern
    that the operating system recognizes.
    """
    several = min(NUM_READERS * PARTS_PER_READER, num_rows // LARGE_PART)
    num_parts = max(min(NUM_READERS, -(-num_rows // MIN_READER_ROWS)), several)
    bounds_P = np.linspace(0, num_rows, num_parts + 1).astype(np.int64)
    if len(firsts_C) >= NUM_READERS:
        bounds_P = np.unique(np.append(firsts_C, num_rows)[np.searchsorted(firsts_C, bounds_P)])
    return bounds_P
