"""Protocol of a tier (storage of rows addressed by number), and conversion of stored rows to those on which kernels
compute."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pipeline.kernels.init_rows import init_rows
from pipeline.kernels.narrow_rows import narrow_rows, widen_rows
from pipeline.records import I32, I64, U32, U64
from pipeline.storage.files import Damaged
from pipeline.storage.layout import RowLayout, row_keys

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


class Tier(Protocol):
    """A tier moves rows and decides nothing. The caller owns the buffers. Numbers within one call are distinct."""

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        """Copy the rows at `at_U` into `out_UW`, in that order."""

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        """Store rows at `at_U`. The disk tier appends: its `at_U` covers chunks one by one, each from its first row."""

    def where(self, at: int) -> str:
        """Describe a row's location in words, for error messages."""

    def close(self) -> None:
        """Release the tier's resources. May be called twice."""


class KeyedTier(Tier, Protocol):
    """The disk tier, which also stores the keys of its rows separately."""

    chunk_rows: int

    def keys(self, chunk: int) -> U64:
        """[R] key of each row of a chunk; RESERVED for padding."""


def check_keys(tier: Tier, at_U: I32 | I64, rows_UW: U32, keys_U: U64) -> None:
    """Raise Damaged if a row that was read does not have the expected key."""
    got_U = row_keys(rows_UW)
    wrong = np.flatnonzero(got_U != keys_U)
    if len(wrong):
        first = int(wrong[0])
        raise Damaged(
            f"{len(wrong)} of {len(keys_U)} rows are not the requested ones; the first: {tier.where(int(at_U[first]))} "
            f"holds key {got_U[first]:#018x} instead of {keys_U[first]:#018x}. None of them was used; "
            "`pipeline verify RUN` says what else is wrong"
        )
