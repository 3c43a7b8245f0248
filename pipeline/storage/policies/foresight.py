"""Foresight policy: the rows whose next use is farthest leave, exact as far as the keys of coming blocks are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.lowest import lowest
from pipeline.records import I32
from pipeline.storage.policies.uses import UNKNOWN_USE, Uses

COUNTED_UP_TO = np.int32(1 << 20)


class Foresight:
    """Belady's rule (1966) within the known blocks. Rows that none of them uses leave first: of these the ones with the
    fewest uses, then the ones not used for longest."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses

    def touch(self, slots_U: I32) -> None:
        """Do nothing: the next use is known from the uses."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        uses, victims_E = self._uses, np.empty(num, np.int32)
        value_S = np.maximum(UNKNOWN_USE - uses.next_N, COUNTED_UP_TO)
        unknown = np.flatnonzero(uses.next_N == UNKNOWN_USE)
        value_S[unknown] = np.minimum(uses.count_N[unknown], COUNTED_UP_TO - 1)
        lowest(value_S, uses.last_N, evictable_S, victims_E)
        return victims_E
