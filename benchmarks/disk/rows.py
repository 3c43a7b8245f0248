"""What all stores of the disk benchmark share: the rows they hold, and how these leave the page cache."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.mix import mix
from pipeline.records import I64, U32
from pipeline.storage.layout import RowLayout
from pipeline.storage.log import rows_file

LAYOUT = RowLayout(embedding_dim=16, first_order=True)
NUM_WORDS, ROW_BYTES = LAYOUT.num_words, LAYOUT.num_bytes
CHUNK_ROWS = 8192
CHUNK_BYTES = CHUNK_ROWS * ROW_BYTES
DROP = Path("/proc/sys/vm/drop_caches")

THREADS = ThreadPoolExecutor(64, thread_name_prefix="bench")
"""For all stores but ours. Started once: what it takes to start threads is not what is measured."""


class Store:
    """A table on disk. `open` is not timed, what is opened only when it is read is; `read` takes positions in any order
    to rows of a buffer, all work between the two included."""

    name: ClassVar[str]
    package: ClassVar[str] = "zarr"
    """What must be installed for it."""

    def __init__(self, folder: Path, num_rows: int) -> None:
        self.folder, self.num_rows = folder, num_rows
        self.log_path = folder / "log"

    def fill(self) -> None:
        """Load the rows from the log's files. Those that read these files have nothing to do."""

    def open(self, dense: bool) -> None:
        """`dense`: so many rows will be wanted that it pays to let the system read ahead."""

    def read(self, at_U: I64, out_UW: U32, cold: bool) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Keep nothing mapped or cached that the page cache could not drop."""

    def leave(self) -> None:
        """Not opened again."""


def chunks_of(num_rows: int) -> int:
    return -(-num_rows // CHUNK_ROWS)


def chunk_of(log_path: Path, chunk: int, num_rows: int) -> U32:
    """[R, W] the rows of a chunk without padding, as a fresh array."""
    rows_RW = np.fromfile(rows_file(log_path, chunk), np.uint32).reshape(CHUNK_ROWS, NUM_WORDS)
    return rows_RW[: num_rows - chunk * CHUNK_ROWS]


@cpu
def make_rows(first: int, out_UW: U32) -> None:
    """The rows at positions `first` and on: the position as key, then words that depend on position and word."""
    for i in range(out_UW.shape[0]):
        key = np.uint64(first + i)
        out_UW[i, 0] = np.uint32(key & np.uint64(0xFFFFFFFF))
        out_UW[i, 1] = np.uint32(key >> np.uint64(32))
        for w in range(2, out_UW.shape[1]):
            out_UW[i, w] = np.uint32(mix(key * np.uint64(64) + np.uint64(w)))


@cpu
def first_wrong(at_U: I64, rows_UW: U32, scratch_1W: U32) -> int:
    """Index of the first row that is not the one of its position, or -1. The last word is the log's, for its tag."""
    for i in range(at_U.size):
        make_rows(at_U[i], scratch_1W)
        for w in range(rows_UW.shape[1] - 1):
            if rows_UW[i, w] != scratch_1W[0, w]:
                return i
    return -1


def may_drop_caches() -> bool:
    """Whether this process may empty the page cache of the whole machine."""
    try:
        DROP.open("w").close()
    except OSError:
        return False
    return True


def make_cold(folder: Path, everything: bool) -> None:
    """Empty the page cache, of `everything` or of the files in the folder. Spares pages that a process has mapped."""
    if everything:
        os.sync()
        DROP.write_text("3")
        return
    for file in (f for f in folder.rglob("*") if f.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
