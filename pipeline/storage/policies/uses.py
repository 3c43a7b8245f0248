"""Uses of rows by training blocks, as far as they are known: what policies choose by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.records import I32

UNKNOWN_USE = np.int32(np.iinfo(np.int32).max)
"""Next use of a row that no known block uses."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Uses of the row in each of N slots. They go with a row between device and host, and are lost on disk."""

    last_N: I32
    """Number of training blocks planned before the last one that used the row."""
    count_N: I32
    """Number of training blocks that used the row since it came from the disk, or was new."""
    next_N: I32
    """Batch of the agenda with which the block begins that uses the row next; UNKNOWN_USE if no known block uses it."""

    @classmethod
    def none(cls, num: int) -> Uses:
        """Uses of rows that come from the disk, or are new."""
        return cls(np.zeros(num, np.int32), np.zeros(num, np.int32), np.full(num, UNKNOWN_USE, np.int32))

    def of(self, slots_U: I32) -> Uses:
        """Copy the uses of the rows in these slots."""
        return Uses(self.last_N[slots_U], self.count_N[slots_U], self.next_N[slots_U])

    def set(self, slots_U: I32, uses: Uses) -> None:
        """Set the uses of the rows in these slots."""
        self.last_N[slots_U], self.count_N[slots_U], self.next_N[slots_U] = uses.last_N, uses.count_N, uses.next_N
