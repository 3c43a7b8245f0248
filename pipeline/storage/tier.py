"""Protocol of a tier: storage of rows addressed by number."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pipeline.records import I32, I64, U32, U64
from pipeline.storage.files import Damaged
from pipeline.storage.layout import row_keys


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
