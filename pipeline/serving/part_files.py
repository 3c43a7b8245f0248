"""Page reads from a table's part files: many in flight, bypassing the OS page cache, with every page checked."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np

from pipeline.kernels.in_flight import close_context, open_context
from pipeline.kernels.page_tag import check_pages
from pipeline.kernels.read_pages import WORK_WORDS, read_pages
from pipeline.kernels.read_rows import PAGE_BYTES, SHORT
from pipeline.kernels.tag import tag_factors
from pipeline.machine.memory import aligned_empty
from pipeline.records import I32, I64, U32
from pipeline.serving.pages import PAGE_DAMAGE, U8, PageFormat, page_numbers, part_file
from pipeline.storage.files import Damaged
from pipeline.storage.reader import allow_many_files


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
