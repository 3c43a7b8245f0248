"""Limits of the disk without our reader: reads of whole chunks and of single rows, and plain writes."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
from numba import types

from benchmarks.disk.rows import CHUNK_ROWS, NUM_WORDS, THREADS, Store, chunks_of
from pipeline.kernels import cpu
from pipeline.records import I32, I64, U32, Array
from pipeline.storage.log import keys_file, rows_file

ROW_READERS = 64
CHUNK_READERS = 16
"""Number of threads that read chunks: the fastest of 2, 4, 8, 16 and 64, cold and warm, if every chunk is touched."""

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uint64, types.int64))


@cpu
def read_each(files_C: I32, at_U: I64, order_N: I64, out_UW: U32, chunk_rows: int) -> bool:
    """Read rows one by one, in this order. Returns True if all reads were complete."""
    size = out_UW.shape[1] * 4
    for n in order_N:
        file, offset = files_C[at_U[n] // chunk_rows], at_U[n] % chunk_rows * size
        if _pread(file, out_UW[n].ctypes.data, size, offset) != size:
            return False
    return True


@cpu
def read_chunk(file: int, at_U: I64, wanted_N: I64, out_UW: U32, chunk_RW: U32) -> bool:
    """Read a whole chunk, then copy the wanted rows from it. Returns True if the read was complete."""
    size = chunk_RW.size * 4
    if _pread(file, chunk_RW.ctypes.data, size, 0) != size:
        return False
    for n in wanted_N:
        row = at_U[n] % chunk_RW.shape[0]
        for w in range(chunk_RW.shape[1]):
            out_UW[n, w] = chunk_RW[row, w]
    return True


@cpu
def by_chunk(at_U: I64, firsts_C: I64, order_U: I64, chunk_rows: int) -> None:
    """Fill in the indices of positions, grouped by chunk, and the bounds of each chunk's group [chunks + 1]."""
    firsts_C[:] = 0
    for at in at_U:
        firsts_C[at // chunk_rows + 1] += 1
    for c in range(firsts_C.size - 1):
        firsts_C[c + 1] += firsts_C[c]
    next_C = firsts_C.copy()
    for n in range(at_U.size):
        c = at_U[n] // chunk_rows
        order_U[next_C[c]] = n
        next_C[c] += 1


class _Files(Store):
    """Store of the log's chunk files, each opened on its first read by the thread that reads it."""

    def open(self) -> None:
        self._files_C = np.full(chunks_of(self.num_rows), -1, np.int32)

    def _open(self, chunk: int) -> None:
        if self._files_C[chunk] < 0:
            self._files_C[chunk] = os.open(rows_file(self.log_path, chunk), os.O_RDONLY)

    def close(self) -> None:
        for file in self._files_C[self._files_C >= 0]:
            os.close(file)


class RawRows(_Files):
    """One `pread` per row with 64 threads, in the order of positions, so that the system's read-ahead helps."""

    name = "raw rows"

    def read(self, at_U: I64, out_UW: U32) -> None:
        order_U = np.argsort(at_U)
        touched_C = np.zeros(len(self._files_C), bool)
        touched_C[at_U // CHUNK_ROWS] = True
        list(THREADS.map(self._open, np.flatnonzero(touched_C).tolist()))
        parts = np.array_split(order_U, ROW_READERS)
        assert all(THREADS.map(lambda part_N: read_each(self._files_C, at_U, part_N, out_UW, CHUNK_ROWS), parts))


class RawChunks(_Files):
    """Reads of every touched chunk as a whole, several at a time, into reused buffers."""

    name = "raw chunks"

    def __init__(self, folder: Path, num_rows: int) -> None:
        super().__init__(folder, num_rows)
        self._buffers_TRW = np.ones((CHUNK_READERS, CHUNK_ROWS, NUM_WORDS), np.uint32)

    def read(self, at_U: I64, out_UW: U32) -> None:
        firsts_C, order_U = np.empty(len(self._files_C) + 1, np.int64), np.empty(len(at_U), np.int64)
        by_chunk(at_U, firsts_C, order_U, CHUNK_ROWS)
        chunks = iter(np.flatnonzero(np.diff(firsts_C)).tolist())
        lock = threading.Lock()

        def take_chunks(chunk_RW: U32) -> bool:
            while True:
                with lock:
                    chunk = next(chunks, None)
                if chunk is None:
                    return True
                self._open(chunk)
                wanted_N = order_U[firsts_C[chunk] : firsts_C[chunk + 1]]
                if not read_chunk(self._files_C[chunk], at_U, wanted_N, out_UW, chunk_RW):
                    return False

        assert all(THREADS.map(take_chunks, self._buffers_TRW))


def plain_writes(folder: Path, chunks: list[tuple[Array, Array]]) -> float:
    """Seconds to write each chunk's rows and keys, contiguous arrays, to separate files, each followed by fsync."""
    (folder / "rows").mkdir(parents=True)
    (folder / "keys").mkdir()
    start = time.perf_counter()
    for c, (rows, keys) in enumerate(chunks):
        for path, array in ((rows_file(folder, c), rows), (keys_file(folder, c), keys)):
            with open(path, "xb", buffering=0) as file:
                assert file.write(array.data) == array.nbytes
                os.fsync(file.fileno())
    return time.perf_counter() - start
