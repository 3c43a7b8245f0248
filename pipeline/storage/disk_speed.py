"""Cost of a read on the disk of a folder: two numbers, measured before a log is opened there."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.kernels.read_rows import PAGE_BYTES, make_scratch
from pipeline.kernels.tag import set_tags
from pipeline.records import I64, U32
from pipeline.storage.reads import reads_of

SCATTERED_AT_FIRST, STREAMED_AT_FIRST = 256, 2048
"""Number of pages in the first call: several per read in flight, and a fraction of a second on a slow disk."""
REPEATS = 3
SECONDS = 0.06
"""Time limit of each measurement. On a slow disk, a measurement ends before all pages are read."""


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    seconds_per_read: float
    """Cost of one more scattered read while many are in flight."""
    bytes_per_second: float
    """Throughput of long reads with several in flight."""

    @property
    def gap_bytes(self) -> int:
        """Number of bytes that the disk streams in the time of one more scattered read."""
        return int(self.seconds_per_read * self.bytes_per_second)


def measure(folder: Path, direct: bool, num_bytes: int = 64 << 20) -> DiskSpeed:
    """Write an unnamed temporary file of `num_bytes` in `folder` and read it back, bypassing the page cache if
    `direct`. Takes about 0.5 s.

    Scattered pages and long reads are each timed three times, alternating. The fastest time counts because other load
    on the machine only makes reads slower. Raises ValueError if the file system does not support O_DIRECT, MemoryError
    if there is too little memory or a thread cannot be started, and OSError if the file cannot be written or read. The
    messages of the last two name the measurement.
    """
    scratch = f"a scratch file of {num_bytes >> 20} MiB that measures the disk's speed"
    try:
        return _measure(folder, direct, num_bytes)
    except (MemoryError, RuntimeError) as error:
        raise MemoryError(f"{error}, for {scratch}") from error
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {folder} cannot hold {scratch}") from error


def _measure(folder: Path, direct: bool, num_bytes: int) -> DiskSpeed:
    pages_UW = np.arange(num_bytes // 4, dtype=np.uint32).reshape(-1, PAGE_BYTES // 4)
    set_tags(pages_UW)
    every_N = np.arange(len(pages_UW))
    some_N = np.sort(np.random.default_rng().permutation(every_N)[: len(every_N) // 4])
    scattered, streamed = [], []
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(pages_UW.data)
        file.flush()
        os.fsync(file.fileno())
        if direct:
            _check_direct(file.fileno(), folder)
        for _ in range(REPEATS):
            scattered.append(_time(file.fileno(), direct, some_N, pages_UW, 0, SCATTERED_AT_FIRST))
            streamed.append(_time(file.fileno(), direct, every_N, pages_UW, 1, STREAMED_AT_FIRST))
    return DiskSpeed(min(scattered), PAGE_BYTES / min(streamed))


def _reopen(file: int, direct: bool) -> int:
    """Reopen the file to get a descriptor with separate read-ahead state."""
    return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | (os.O_DIRECT if direct else 0))


def _check_direct(file: int, folder: Path) -> None:
    try:
        descriptor = _reopen(file, direct=True)
        try:
            os.preadv(descriptor, [make_scratch(PAGE_BYTES)[:PAGE_BYTES].data], 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError(f"{folder}: its file system does not support O_DIRECT; set storage.direct to False") from error


def _time(file: int, direct: bool, pages_N: I64, out_UW: U32, max_gap: int, at_first: int) -> float:
    """Return seconds per page. Reads the pages into their rows of `out_UW`, as rows of the log are read, for at most
    SECONDS: `at_first` pages, then twice as many in each call."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    descriptor, reads = _reopen(file, direct), reads_of(PAGE_BYTES, max_gap, direct)
    try:
        start, begin = time.perf_counter(), 0
        while begin < len(pages_N) and (begin == 0 or time.perf_counter() - start < SECONDS):
            at_N = pages_N[begin : begin + (at_first if begin == 0 else begin)]
            failed, why = reads.read(np.full(len(at_N), descriptor, np.int32), at_N * PAGE_BYTES, at_N, out_UW)
            if why:
                raise OSError(max(why, 0) or errno.EIO, f"could not read back page {at_N[failed]} of a scratch file")
            begin += len(at_N)
        return (time.perf_counter() - start) / begin
    finally:
        os.close(descriptor)
        reads.close()
