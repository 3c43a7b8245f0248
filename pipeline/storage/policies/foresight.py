"""Foresight policy: evicts the rows whose next use is farthest, exact as far as the keys of coming blocks are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.lowest import foresee
from pipeline.records import I32
from pipeline.storage.policies.uses import UNKNOWN_USE, Uses

COUNTED_UP_TO = np.int32(1 << 20)


class Foresight:
    """Belady's rule (1966) within the known blocks. Rows that no known block uses leave first, those with the fewest
    uses before others; ties are broken by least recent use."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses

    def touch(self, slots_U: I32) -> None:
        """Do nothing: `Uses` already records the next use."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        uses, value_S = self._uses, np.empty(len(evictable_S), np.int32)
        uses.threads.split(
            len(value_S),
            lambda a, b: foresee(uses.next_N[a:b], uses.count_N[a:b], UNKNOWN_USE, COUNTED_UP_TO, value_S[a:b]),
        )
        return uses.lowest(value_S, num, evictable_S)
