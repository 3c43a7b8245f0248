"""LRU policy: evicts the least recently used rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.records import I32
from pipeline.storage.policies.uses import Uses


class LRU:
    """Least recently used, counted in blocks. Together with `LFU` on the host it is the cache hierarchy of HierPS."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses

    def touch(self, slots_U: I32) -> None:
        """Do nothing: `Uses` already records the last use."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        return self._uses.lowest(self._uses.last_N, num, evictable_S)
