"""Rows moved whole, by slot."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_row
from pipeline.records import I32, U32


def gather_rows_reference(slab_SW: U32, at_U: I32, out_UW: U32) -> None:
    out_UW[:] = slab_SW[at_U]


@cpu
def gather_rows(slab_SW: U32, at_U: I32, out_UW: U32) -> None:
    """out[u] = slab[at[u]]"""
    base, row_bytes = slab_SW.ctypes.data, slab_SW.shape[1] * 4
    for u in range(at_U.size):
        if u + AHEAD < at_U.size:
            prefetch_row(base, np.int64(at_U[u + AHEAD]), row_bytes)
        at = at_U[u]
        for w in range(slab_SW.shape[1]):
            out_UW[u, w] = slab_SW[at, w]


def scatter_rows_reference(slab_SW: U32, at_U: I32, rows_UW: U32) -> None:
    slab_SW[at_U] = rows_UW


@cpu
def scatter_rows(slab_SW: U32, at_U: I32, rows_UW: U32) -> None:
    """slab[at[u]] = rows[u]; `at_U` names no slot twice."""
    base, row_bytes = slab_SW.ctypes.data, slab_SW.shape[1] * 4
    for u in range(at_U.size):
        if u + AHEAD < at_U.size:
            prefetch_row(base, np.int64(at_U[u + AHEAD]), row_bytes)
        at = at_U[u]
        for w in range(slab_SW.shape[1]):
            slab_SW[at, w] = rows_UW[u, w]
