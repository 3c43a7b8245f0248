"""Reader of a servable's table, with its part files and its cache of pages: the weights of any keys, in bounded memory,
with at most one page read per key."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import LifoQueue

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.in_flight import close_context, open_context
from pipeline.kernels.page_rows import NO_PAGE, PRECISION_NUMBERS, WAYS, find_pages, find_slots, insert_pages, take_rows
from pipeline.kernels.read_pages import WORK_WORDS, check_pages, read_pages
from pipeline.kernels.read_rows import PAGE_BYTES, SHORT
from pipeline.kernels.tag import tag_factors
from pipeline.machine.limits import aligned_empty
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.records import F32, I32, I64, U32, U64
from pipeline.serving.pages import PAGE_DAMAGE, U8, PageFormat, page_numbers, part_file
from pipeline.storage.files import Damaged
from pipeline.storage.reader import allow_many_files

NUM_SCRATCHES = 4
"""Number of calls that may read concurrently. Others wait when they need a page that is not in the cache."""
MAX_READS = 256
"""Maximum number of reads in flight per call."""
SCRATCH_SHARE = 8
"""All scratches together take at most 1 / SCRATCH_SHARE of the memory, but at least one page each."""
KEYS_AT_ONCE = 1 << 14
"""Number of keys looked up per acquisition of the cache's lock, which takes a few milliseconds."""


class PageTable:
    """Immutable table of part files, with its own page cache. Any number of threads may look up keys concurrently."""

    def __init__(self, folder: Path, num_parts: int, fences_N: U32, format: PageFormat, memory_bytes: int) -> None:
        """Open parts 0 to `num_parts` - 1 in the folder. `fences_N`: fences of all parts, concatenated. `memory_bytes`
        limits the cache, its bookkeeping and the read buffers; fences take another 4 bytes per page.

        Raises ValueError if `memory_bytes` is too small, Damaged if the fences do not ascend or do not match the files,
        and OSError if a file cannot be opened.
        """
        page_bytes = format.page_bytes
        least = NUM_SCRATCHES * scratch_bytes(1, page_bytes) + set_bytes(page_bytes)
        if memory_bytes < least:
            raise ValueError(
                f"memory is {format_size_down(memory_bytes)}, too little for a cache of pages of "
                f'{format_size_up(page_bytes)}; raise it to "{format_size_up(least)}" (of a command: --memory)'
            )
        # Kernels are compiled for writable arrays.
        self._fences_N: U32 = np.require(fences_N, np.uint32, ["C", "W"])
        if (self._fences_N[1:] <= self._fences_N[:-1]).any():
            raise Damaged(f"{folder}: its fences do not ascend; export the table again")
        self._num_weights = format.num_weights
        self._format = PRECISION_NUMBERS[format.precision], format.max_rows, format.embedding_dim
        of_scratch = memory_bytes // SCRATCH_SHARE // NUM_SCRATCHES // scratch_bytes(1, page_bytes)
        self._max_reads = max(1, min(MAX_READS, of_scratch))
        all_scratch_bytes = NUM_SCRATCHES * scratch_bytes(self._max_reads, page_bytes)
        self.cache = PageCache(memory_bytes - all_scratch_bytes, len(self._fences_N), format)
        self.num_bytes = self.cache.num_bytes + all_scratch_bytes
        """Bytes that count towards `memory_bytes`."""
        self.files = PartFiles(folder, num_parts, self._fences_N, format)
        self._scratches = [Scratch(self._max_reads, page_bytes) for _ in range(NUM_SCRATCHES)]
        self._free: LifoQueue[Scratch | None] = LifoQueue()
        for scratch in self._scratches:
            self._free.put(scratch)

    def look_up(self, keys_P: U64, weights_PC: F32) -> NDArray[np.bool_]:
        """Write the weights of the keys that the table contains to their rows of `weights_PC` [P, C], and return which
        keys these are. Other rows stay unchanged.

        Raises OSError if a page cannot be read, Damaged if it is damaged, and ValueError if the table is closed;
        `weights_PC` is then undefined. Other keys can still be looked up.
        """
        if weights_PC.shape != (len(keys_P), self._num_weights):
            raise ValueError(
                f"an array {weights_PC.shape} for {len(keys_P)} keys with {self._num_weights} weights each"
            )
        keys_P = np.require(keys_P, np.uint64, ["C", "W"])
        found_P = np.zeros(len(keys_P), np.bool_)
        if len(self._fences_N):
            for begin in range(0, len(keys_P), KEYS_AT_ONCE):
                part = slice(begin, begin + KEYS_AT_ONCE)
                self._look_up(keys_P[part], weights_PC[part], found_P[part])
        return found_P

    def _look_up(self, keys_P: U64, weights_PC: F32, found_P: NDArray[np.bool_]) -> None:
        pages_P = np.empty(len(keys_P), np.int32)
        find_pages(self._fences_N, keys_P, pages_P)
        missed_M = self.cache.take(keys_P, pages_P, weights_PC, found_P)
        if not len(missed_M):
            return
        missed_M = missed_M[np.argsort(pages_P[missed_M], kind="stable")]
        pages_M = pages_P[missed_M]
        pages_U = np.unique(pages_M)
        for begin in range(0, len(pages_U), self._max_reads):
            pages_R = pages_U[begin : begin + self._max_reads]
            first, end = np.searchsorted(pages_M, (pages_R[0], pages_R[-1] + 1))
            slots_M = np.searchsorted(pages_R, pages_M[first:end]).astype(np.int32)
            with self._scratch() as scratch:
                pages_RB = self.files.read(pages_R, scratch)
                take_rows(pages_RB, slots_M, missed_M[first:end], keys_P, *self._format, weights_PC, found_P)
                self.cache.insert(pages_R, pages_RB)

    @contextmanager
    def _scratch(self) -> Iterator[Scratch]:
        scratch = self._free.get()
        try:
            if scratch is None:
                raise ValueError("this table is closed")
            yield scratch
        finally:
            self._free.put(scratch)

    def close(self) -> None:
        """Close the files when no call reads from them. The cache stays until the table is garbage-collected."""
        for _ in self._scratches:
            self._free.get()
        self._free.put(None)
        while self._scratches:
            self._scratches.pop().close()
        self.files.close()


class PageCache:
    """Pages by number. `memory_bytes` covers the slots and their bookkeeping; there are at most `num_pages` slots,
    rounded up to a whole set. A new page replaces a page that was not used recently."""

    def __init__(self, memory_bytes: int, num_pages: int, format: PageFormat) -> None:
        num_sets = min(memory_bytes // set_bytes(format.page_bytes), -(-num_pages // WAYS))
        self._page_of_S: I32 = np.full(num_sets * WAYS, NO_PAGE, np.int32)
        self._marked_S: U8 = np.zeros(num_sets * WAYS, np.uint8)
        self._hands: U8 = np.zeros(num_sets, np.uint8)
        self._pages_SB: U8 = aligned_empty((num_sets * WAYS, format.page_bytes), np.uint8)
        self._format = PRECISION_NUMBERS[format.precision], format.max_rows, format.embedding_dim
        self._lock = threading.Lock()
        self._hits = self._misses = self._read = 0

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self._page_of_S, self._marked_S, self._hands, self._pages_SB))

    @property
    def counts(self) -> dict[str, int]:
        """Counts since the table was opened: keys whose page was in the cache, and other keys; pages read from files,
        and their bytes. Fewer pages are read than keys missed if keys of one call share a page."""
        num_bytes = self._read * self._pages_SB.shape[1]
        counts = {"keys_hit": self._hits, "keys_missed": self._misses, "pages_read": self._read}
        return counts | {"bytes_read": num_bytes}

    def take(self, keys_P: U64, pages_P: I32, weights_PC: F32, found_P: NDArray[np.bool_]) -> I32:
        """Write the weights of keys whose page is cached, and set `found_P`. Returns the positions [M] of the other
        keys."""
        members_P, slots_P = np.empty(len(keys_P), np.int32), np.empty(len(keys_P), np.int32)
        with self._lock:
            hits = find_slots(self._page_of_S, self._marked_S, len(self._hands), pages_P, members_P, slots_P)
            self._hits += hits
            self._misses += len(keys_P) - hits
            # Pages stay in their slots until the lock is released.
            take_rows(self._pages_SB, slots_P[:hits], members_P[:hits], keys_P, *self._format, weights_PC, found_P)
        return members_P[hits:]

    def insert(self, pages_R: I32, read_RB: U8) -> None:
        """Insert pages that were read, and count them. Another thread may already have inserted some of them."""
        with self._lock:
            insert_pages(self._page_of_S, self._marked_S, self._hands, self._pages_SB, pages_R, read_RB)
            self._read += len(pages_R)


def set_bytes(page_bytes: int) -> int:
    """Bytes of the smallest cache: the pages of one set, their numbers and marks, and the set's hand."""
    return WAYS * (page_bytes + 5) + 1


class Scratch:
    """Buffers for the pages that one thread reads at once."""

    def __init__(self, max_reads: int, page_bytes: int) -> None:
        self.pages_RB: U8 = aligned_empty((max_reads, page_bytes), np.uint8, PAGE_BYTES)
        self.work: I64 = np.empty(max_reads * WORK_WORDS, np.int64)
        self.context = open_context(max_reads)

    def close(self) -> None:
        close_context(self.context)


def scratch_bytes(max_reads: int, page_bytes: int) -> int:
    return max_reads * (page_bytes + 8 * WORK_WORDS) + PAGE_BYTES


class PartFiles:
    """Open part files. Any number of threads may read concurrently, each with its own scratch."""

    def __init__(self, folder: Path, num_parts: int, fences_N: U32, format: PageFormat) -> None:
        """Raises OSError if a file cannot be opened, and Damaged if the files do not contain exactly one page per
        fence."""
        allow_many_files()
        self._paths = [part_file(folder, number) for number in range(num_parts)]
        self._fences_N = fences_N
        self._page_bytes, self._max_rows = format.page_bytes, format.max_rows
        self._odd_W = tag_factors(self._page_bytes // 4)
        self.direct = True
        self._files: list[int] = []
        try:
            for path in self._paths:
                self._files.append(self._open(path))
            sizes_K = np.array([os.fstat(file).st_size for file in self._files], np.int64)
            if sizes_K.sum() != len(fences_N) * self._page_bytes or (sizes_K % self._page_bytes).any():
                raise Damaged(
                    f"{folder}: its files have {sizes_K.sum():,} bytes, which are not {len(fences_N):,} pages of "
                    f"{self._page_bytes:,} bytes; export the table again"
                )
        except BaseException:
            self.close()
            raise
        self._files_K = np.array(self._files, np.int32)
        self._begins_K = np.append(0, np.cumsum(sizes_K) // self._page_bytes)

    def _open(self, path: Path) -> int:
        if self.direct:
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return file

    def read(self, pages_R: I32, scratch: Scratch) -> U8:
        """Read and check pages, given their numbers in the table. Returns [R, page_bytes], a view of the scratch.

        Raises OSError if a page cannot be read, and Damaged if it is damaged. If several pages fail, unreadable pages
        are reported before damaged ones, and earlier pages in `pages_R` before later ones.
        """
        parts_R = np.searchsorted(self._begins_K, pages_R, side="right") - 1
        within_R = pages_R - self._begins_K[parts_R]
        files_R, offsets_R = self._files_K[parts_R], within_R * self._page_bytes
        pages_RB = scratch.pages_RB[: len(pages_R)]
        failed, why = read_pages(scratch.context, files_R, offsets_R, pages_RB, scratch.work)
        if not self.direct:
            for file, offset in zip(files_R.tolist(), offsets_R.tolist(), strict=True):
                os.posix_fadvise(file, offset, self._page_bytes, os.POSIX_FADV_DONTNEED)
        if not why:
            numbers_R, reasons_R = page_numbers(parts_R, within_R), np.empty(len(pages_R), np.int32)
            words_RW, fences_R = pages_RB.view(np.uint32), self._fences_N[pages_R]
            check_pages(words_RW, numbers_R, fences_R, self._max_rows, self._odd_W, reasons_R)
            failed = int((reasons_R != 0).argmax())
            why = int(reasons_R[failed])
        if why:
            raise self._error(self._paths[parts_R[failed]], int(within_R[failed]), why)
        return pages_RB

    def _error(self, path: Path, page: int, why: int) -> OSError:
        offset = page * self._page_bytes
        if why in PAGE_DAMAGE:
            return Damaged(
                f"{path}: page {page} (at offset {offset}) is damaged: {PAGE_DAMAGE[why]}; export the table again"
            )
        what = f"{path}: could not read page {page}, {self._page_bytes} bytes at offset {offset}"
        if why == SHORT:
            return OSError(f"{what} (the file has {path.stat().st_size}); export the table again")
        return OSError(why, f"{what} ({os.strerror(why)})")

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())
