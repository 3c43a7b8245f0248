"""Uses of rows by training blocks, as far as they are known: what policies choose by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.lowest import lowest
from pipeline.kernels.slots import read_uses
from pipeline.records import I32
from pipeline.storage.plan_threads import ALONE, PlanThreads

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
    threads: PlanThreads = ALONE
    """Threads that share work on many slots."""

    @classmethod
    def none(cls, num: int, threads: PlanThreads = ALONE) -> Uses:
        """Uses of rows that come from the disk, or are new."""
        return cls(np.zeros(num, np.int32), np.zeros(num, np.int32), np.full(num, UNKNOWN_USE, np.int32), threads)

    def of(self, slots_U: I32, before: int = 0, after: int = 0) -> Uses:
        """Copy the uses of the rows in these slots, with so many rows without any before and after them."""
        found, mine = Uses.none(before + len(slots_U) + after, self.threads), self.arrays
        into = [array[before : before + len(slots_U)] for array in found.arrays]
        self.threads.split(len(slots_U), lambda a, b: read_uses(slots_U[a:b], *mine, *(part[a:b] for part in into)))
        return found

    @property
    def arrays(self) -> tuple[I32, I32, I32]:
        return self.last_N, self.count_N, self.next_N

    def lowest(self, score_N: I32, num: int, evictable_N: NDArray[np.uint8]) -> I32:
        """Return the `num` evictable slots of the lowest scores, which are 0 or more; of equal scores those that were
        not used for longest, then the first ones."""
        return lowest(score_N, self.last_N, evictable_N, num, self.threads)
