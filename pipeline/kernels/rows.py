"""Gather and scatter of whole rows by slot, with stores that bypass the caches if the row width allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu, need, need_index
from pipeline.kernels.hint import finish_streams, prefetch_ahead, stream_row, streams_by
from pipeline.kernels.launch import lanes_for, launch, on_host
from pipeline.records import I32, I64, U32


def gather_rows(slab_SW: U32, at_U: I32 | I64, out_UW: U32) -> None:
    """Copy rows: out[u] = slab[at[u]]."""
    need(len(out_UW), len(at_U))
    if on_host(slab_SW):
        gather_cpu(slab_SW, at_U, out_UW)
    else:
        _launch(gather_cuda, slab_SW, at_U, out_UW)


def scatter_rows(slab_SW: U32, at_U: I32 | I64, rows_UW: U32) -> None:
    """Copy rows: slab[at[u]] = rows[u]. The slots in `at_U` must be distinct."""
    need(len(rows_UW), len(at_U))
    if on_host(slab_SW):
        scatter_cpu(slab_SW, at_U, rows_UW)
    else:
        _launch(scatter_cuda, slab_SW, at_U, rows_UW)


def _launch(kernel: Any, slab_SW: U32, at_U: I32 | I64, rows_UW: U32) -> None:
    if slab_SW.shape[1] % 2 == 0:
        # Eight bytes per thread keep twice as many bytes in flight.
        slab_SW, rows_UW = slab_SW.view(np.uint64), rows_UW.view(np.uint64)
    lanes = lanes_for(slab_SW.shape[1])
    launch(kernel, len(at_U), slab_SW, at_U, rows_UW, lanes, lanes=lanes)


def gather_rows_reference(slab_SW: U32, at_U: I32, out_UW: U32) -> None:
    out_UW[:] = slab_SW[at_U]


def scatter_rows_reference(slab_SW: U32, at_U: I32, rows_UW: U32) -> None:
    slab_SW[at_U] = rows_UW


@cpu
def _lie_together(rows_UW: U32) -> bool:
    return rows_UW.shape[0] < 2 or rows_UW.strides[0] == rows_UW.shape[1] * 4


@cpu
def _need_alike(slab_SW: U32, rows_UW: U32) -> None:
    """Raise IndexError unless the rows of both arrays are contiguous and have the same length."""
    if rows_UW.shape[1] != slab_SW.shape[1] or not (_lie_together(slab_SW) and _lie_together(rows_UW)):
        raise IndexError("rows to move must be contiguous and have the same length as the rows of the slab")


@cpu
def gather_cpu(slab_SW: U32, at_U: I32, out_UW: U32) -> None:
    _need_alike(slab_SW, out_UW)
    base, into, row_bytes = slab_SW.ctypes.data, out_UW.ctypes.data, slab_SW.shape[1] * 4
    by = streams_by(out_UW)
    for u in range(at_U.size):
        prefetch_ahead(base, at_U, u, row_bytes)
        at = np.int64(at_U[u])
        need_index(at, slab_SW.shape[0])
        if by:
            stream_row(base + at * row_bytes, into + u * row_bytes, row_bytes, by)
        else:
            for w in range(slab_SW.shape[1]):
                out_UW[u, w] = slab_SW[at, w]
    finish_streams()


@cpu
def scatter_cpu(slab_SW: U32, at_U: I32, rows_UW: U32) -> None:
    _need_alike(slab_SW, rows_UW)
    base, source, row_bytes = slab_SW.ctypes.data, rows_UW.ctypes.data, slab_SW.shape[1] * 4
    by = streams_by(slab_SW)
    for u in range(at_U.size):
        if by == 0:
            prefetch_ahead(base, at_U, u, row_bytes)
        at = np.int64(at_U[u])
        need_index(at, slab_SW.shape[0])
        if by:
            stream_row(source + u * row_bytes, base + at * row_bytes, row_bytes, by)
        else:
            for w in range(slab_SW.shape[1]):
                slab_SW[at, w] = rows_UW[u, w]
    finish_streams()


@gpu
def gather_cuda(slab_SW: U32, at_U: I32, out_UW: U32, lanes: int) -> None:
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for u in range(group, at_U.size, cuda.gridsize(1) // lanes):
        at = at_U[u]
        for w in range(lane, slab_SW.shape[1], lanes):
            out_UW[u, w] = slab_SW[at, w]


@gpu
def scatter_cuda(slab_SW: U32, at_U: I32, rows_UW: U32, lanes: int) -> None:
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for u in range(group, at_U.size, cuda.gridsize(1) // lanes):
        at = at_U[u]
        for w in range(lane, slab_SW.shape[1], lanes):
            slab_SW[at, w] = rows_UW[u, w]
