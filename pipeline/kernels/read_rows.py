"""Rows read from files by offset, many in one call, without the GIL."""

from __future__ import annotations

import os

import numpy as np
from numba import types

from pipeline.kernels import cpu
from pipeline.records import I32, I64, U32

# libc's own; resolved when the kernel is loaded, so the compiled kernel can still be cached on disk.
_pread = types.ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uint64, types.int64))


def read_rows_reference(files_N: I32, offsets_N: I64, to_N: I64, out_UW: U32) -> int:
    """One read a row; rows in any order."""
    for n, (file, offset) in enumerate(zip(files_N, offsets_N, strict=True)):
        row = os.pread(file, out_UW[0].nbytes, offset)
        if len(row) != out_UW[0].nbytes:
            return n
        out_UW[to_N[n]] = np.frombuffer(row, np.uint32)
    return -1


@cpu
def read_rows(files_N: I32, offsets_N: I64, to_N: I64, out_UW: U32, scratch: np.ndarray, max_gap: int) -> int:
    """Read the row at each (file descriptor, byte offset) into row `to_N` of `out_UW`.

    Rows come sorted by file and offset. Neighbours less than `max_gap` bytes apart are read as one span of at most
    `scratch.size` bytes [uint8], which costs less than a second call. Returns the index of the first row that could not
    be read whole, or -1.
    """
    row_bytes = out_UW.shape[1] * 4
    words = scratch.view(np.uint32)
    n = 0
    while n < files_N.size:
        begin = offsets_N[n]
        end = begin + row_bytes
        last = n + 1
        while (
            last < files_N.size
            and files_N[last] == files_N[n]
            and offsets_N[last] - end < max_gap
            and offsets_N[last] + row_bytes - begin <= scratch.size
        ):
            end = offsets_N[last] + row_bytes
            last += 1
        alone = last == n + 1
        address = out_UW[to_N[n]].ctypes.data if alone else scratch.ctypes.data
        got = _pread(files_N[n], address, end - begin, begin)
        if got != end - begin:
            while offsets_N[n] + row_bytes - begin <= got:
                n += 1
            return n
        if not alone:
            for i in range(n, last):
                word = (offsets_N[i] - begin) // 4
                for w in range(out_UW.shape[1]):
                    out_UW[to_N[i], w] = words[word + w]
        n = last
    return -1
