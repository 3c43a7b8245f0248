"""Common parts of all ways to read in the disk benchmark: their rows, and dropping rows from the page cache."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hashing import mix
from pipeline.records import I64, U32
from pipeline.storage.layout import RowLayout
from pipeline.storage.log import TableFormat

LAYOUT = RowLayout(embedding_dim=16, first_order=True)
NUM_WORDS, ROW_BYTES = LAYOUT.num_words, LAYOUT.num_bytes
CHUNK_ROWS = 8192
TABLE = TableFormat(LAYOUT, CHUNK_ROWS)
DROP = Path("/proc/sys/vm/drop_caches")

THREADS = ThreadPoolExecutor(64, thread_name_prefix="bench")
"""Threads for all stores except ours. They are started once, so that their start is not measured."""


class Store:
    """A way to read the table. `open` is not timed, but opening a file on its first read is. `read` is timed as a
    whole, from positions in any order to rows in a buffer."""

    name: ClassVar[str]

    def __init__(self, folder: Path, num_rows: int) -> None:
        self.num_rows = num_rows
        self.log_path = folder / "log"

    def open(self) -> None:
        """Prepare for reads."""

    def read(self, at_U: I64, out_UW: U32) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close the files, so that their pages can be dropped from the page cache."""

    def leave(self) -> None:
        """End the store; it is not opened again."""


def chunks_of(num_rows: int) -> int:
    return -(-num_rows // CHUNK_ROWS)


@cpu
def make_rows(first: int, out_UW: U32) -> None:
    """Fill in the rows at positions from `first` on: the position as the key, then words that depend on position and
    index."""
    for i in range(out_UW.shape[0]):
        key = np.uint64(first + i)
        out_UW[i, 0] = np.uint32(key & np.uint64(0xFFFFFFFF))
        out_UW[i, 1] = np.uint32(key >> np.uint64(32))
        for w in range(2, out_UW.shape[1]):
            out_UW[i, w] = np.uint32(mix(key * np.uint64(64) + np.uint64(w)))


@cpu
def first_wrong(at_U: I64, rows_UW: U32, scratch_1W: U32) -> int:
    """Index of the first row that does not belong to its position, or -1. The last word is the log's tag."""
    for i in range(at_U.size):
        make_rows(at_U[i], scratch_1W)
        for w in range(rows_UW.shape[1] - 1):
            if rows_UW[i, w] != scratch_1W[0, w]:
                return i
    return -1


def may_drop_caches() -> bool:
    """True if this process may empty the page cache of the whole machine."""
    try:
        DROP.open("w").close()
    except OSError:
        return False
    return True


def make_cold(folder: Path, everything: bool) -> None:
    """Drop `everything`, or the files in the folder, from the page cache. Pages mapped by a process remain."""
    if everything:
        os.sync()
        DROP.write_text("3")
        return
    for file in (f for f in folder.rglob("*") if f.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
