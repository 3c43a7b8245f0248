"""Rows moved whole, by slot, past the caches where their width allows it."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_row
from pipeline.kernels.stream import finish_streams, may_stream, stream_row
from pipeline.records import I32, U32


def gather_rows_reference(slab_SW: U32, at_U: I32, out_UW: U32) -> None:
    out_UW[:] = slab_SW[at_U]


@cpu
def gather_rows(slab_SW: U32, at_U: I32, out_UW: U32) -> None:
    """out[u] = slab[at[u]]"""
    base, into, row_bytes = slab_SW.ctypes.data, out_UW.ctypes.data, slab_SW.shape[1] * 4
    streams = may_stream(out_UW)
    for u in range(at_U.size):
        if u + AHEAD < at_U.size:
            prefetch_row(base, np.int64(at_U[u + AHEAD]), row_bytes)
        at = np.int64(at_U[u])
        if streams:
            stream_row(base + at * row_bytes, into + u * row_bytes, row_bytes)
        else:
            for w in range(slab_SW.shape[1]):
                out_UW[u, w] = slab_SW[at, w]
    finish_streams()


def scatter_rows_reference(slab_SW: U32, at_U: I32, rows_UW: U32) -> None:
    slab_SW[at_U] = rows_UW


@cpu
def scatter_rows(slab_SW: U32, at_U: I32, rows_UW: U32) -> None:
    """slab[at[u]] = rows[u]; `at_U` names no slot twice."""
    base, source, row_bytes = slab_SW.ctypes.data, rows_UW.ctypes.data, slab_SW.shape[1] * 4
    streams = may_stream(slab_SW)
    for u in range(at_U.size):
        at = np.int64(at_U[u])
        if streams:
            stream_row(source + u * row_bytes, base + at * row_bytes, row_bytes)
        else:
            for w in range(slab_SW.shape[1]):
                slab_SW[at, w] = rows_UW[u, w]
    finish_streams()
