"""LFU policies: the rows that were used by the fewest blocks leave, with or without ageing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.lowest import lowest
from pipeline.records import I32
from pipeline.storage.policies.uses import Uses


class LFU:
    """Least frequently used since the row came from the disk; of equal counts the one not used for longest."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses

    def touch(self, slots_U: I32) -> None:
        """Do nothing: the count is known from the uses."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        victims_E = np.empty(num, np.int32)
        lowest(self._uses.count_N, self._uses.last_N, evictable_S, victims_E)
        return victims_E


class AgedLFU:
    """LFU with dynamic ageing (LFU-DA; Arlitt et al., 1999): a use counts from the count at which rows leave now, so
    that rows which were popular once leave in the end."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses
        self._aged_S = np.zeros(len(uses.count_N), np.int32)
        self._age = 0

    def touch(self, slots_U: I32) -> None:
        aged_U = self._uses.count_N[slots_U].astype(np.int64) + self._age
        self._aged_S[slots_U] = np.minimum(aged_U, np.iinfo(np.int32).max)

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        victims_E = np.empty(num, np.int32)
        lowest(self._aged_S, self._uses.last_N, evictable_S, victims_E)
        self._age = max(self._age, int(self._aged_S[victims_E].max(initial=0)))
        return victims_E
