"""What every tier is: a place where rows lie, by number."""

from __future__ import annotations

from typing import Protocol

from pipeline.records import I32, I64, U32


class Tier(Protocol):
    """Moves rows and decides nothing; the caller owns the buffers. Numbers within one call are distinct."""

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        """Copy the rows at `at_U` into `out_UW`, in that order."""

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        """Put rows at `at_U`. The disk appends: its numbers are consecutive, from the first of a chunk."""

    def close(self) -> None:
        """Give back what the tier holds open. May be called twice."""
