"""Uses of rows by training blocks, as far as they are known. Policies base their choices on them."""

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
    """Uses of the row in each of N slots. They move with a row between device and host and are lost on disk."""

    last_N: I32
    """Number of training blocks that were planned before the last block that used the row."""
    count_N: I32
    """Number of training blocks that used the row since it was created or read from disk."""
    next_N: I32
    """First batch, in the agenda, of the next block that uses the row; UNKNOWN_USE if no known block uses it."""
    threads: PlanThreads = ALONE
    """Threads that share the work on many slots."""

    @classmethod
    def none(cls, num: int, threads: PlanThreads = ALONE) -> Uses:
        """Uses of rows that are new or were read from disk."""
        return cls(np.zeros(num, np.int32), np.zeros(num, np.int32), np.full(num, UNKNOWN_USE, np.int32), threads)

    def of(self, slots_U: I32, before: int = 0, after: int = 0) -> Uses:
        """Copy the uses of the rows in these slots, with `before` and `after` unused rows added around them."""
        found, mine = Uses.none(before + len(slots_U) + after, self.threads), self.arrays
        into = [array[before : before + len(slots_U)] for array in found.arrays]
        self.threads.split(len(slots_U), lambda a, b: read_uses(slots_U[a:b], *mine, *(part[a:b] for part in into)))
        return found

    @property
    def arrays(self) -> tuple[I32, I32, I32]:
        return self.last_N, self.count_N, self.next_N

    def lowest(self, score_N: I32, num: int, evictable_N: NDArray[np.uint8]) -> I32:
        """Return the `num` evictable slots with the lowest scores, which are 0 or more. Ties are broken by least recent
        use, then by slot."""
        return lowest(score_N, self.last_N, evictable_N, num, self.threads)
