"""Conversion of stored rows to the rows on which kernels compute, and the initial rows of keys."""

from __future__ import annotations

import numpy as np

from pipeline.kernels.init_rows import init_rows
from pipeline.kernels.narrow_rows import narrow_rows, widen_rows
from pipeline.records import U32, U64
from pipeline.storage.layout import RowLayout

FIRST_ROWS_AT_ONCE = 1024
"""Maximum number of wide rows in memory while initial rows are made, since no cap covers them."""


def widened(layout: RowLayout, rows_UW: U32) -> U32:
    """[U, X] the rows [U, W] with all values as float32; the same array if they are stored that way."""
    if not layout.formats:
        return rows_UW
    wide_UX = np.zeros((len(rows_UW), layout.wide.num_words), np.uint32)
    widen_rows(rows_UW, rows_UW[:0], np.arange(len(rows_UW), dtype=np.int32), layout.widening(), wide_UX)
    return wide_UX


def write_first_rows(layout: RowLayout, seed: int, init_std: float, keys_U: U64, out_UW: U32) -> None:
    """Write the initial rows [U, W] of keys: random embedding weights, and zeros in all other words."""
    if not layout.formats:
        init_rows(keys_U, np.uint64(seed), init_std, layout.embedding_dim, out_UW)
        return
    out_UW[:] = 0
    parts_N4, at_T = layout.widening(), np.arange(FIRST_ROWS_AT_ONCE, dtype=np.int32)
    wide_TX = np.empty((min(len(keys_U), FIRST_ROWS_AT_ONCE), layout.wide.num_words), np.uint32)
    for first in range(0, len(keys_U), FIRST_ROWS_AT_ONCE):
        keys_T, out_TW = keys_U[first : first + FIRST_ROWS_AT_ONCE], out_UW[first : first + FIRST_ROWS_AT_ONCE]
        init_rows(keys_T, np.uint64(seed), init_std, layout.embedding_dim, wide_TX[: len(keys_T)])
        narrow_rows(wide_TX, at_T[: len(keys_T)], parts_N4, seed, 0, out_TW)
