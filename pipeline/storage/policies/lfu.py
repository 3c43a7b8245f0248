"""LFU policies: evict the rows that were used by the fewest blocks, with or without ageing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.slots import age_slots
from pipeline.records import I32
from pipeline.storage.policies.uses import Uses


class LFU:
    """Least frequently used since the row was read from disk; ties are broken by least recent use."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses

    def touch(self, slots_U: I32) -> None:
        """Do nothing: `Uses` already records the count."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        return self._uses.lowest(self._uses.count_N, num, evictable_S)


class AgedLFU:
    """LFU with dynamic ageing (LFU-DA; Arlitt et al., 1999): a use counts from the count at which rows currently leave,
    so that rows that are no longer popular eventually leave."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses
        self._aged_S = np.zeros(len(uses.count_N), np.int32)
        self._age = 0

    def touch(self, slots_U: I32) -> None:
        slots = self._uses.count_N, self._age, self._aged_S
        self._uses.threads.split(len(slots_U), lambda a, b: age_slots(slots_U[a:b], *slots))

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        victims_E = self._uses.lowest(self._aged_S, num, evictable_S)
        self._age = max(self._age, int(self._aged_S[victims_E].max(initial=0)))
        return victims_E
