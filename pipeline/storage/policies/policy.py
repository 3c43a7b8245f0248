"""The protocol of a policy."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.records import I32


class Policy(Protocol):
    """Chooses among rows that no block of the look-ahead window needs. It sees slots, never rows.

    Called by `plan` alone, in block order, so a choice depends on the trace of keys and on nothing else.
    """

    def __init__(self, num_slots: int) -> None: ...

    def touch(self, slots_U: I32) -> None:
        """The block being planned uses these slots, or fills them."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        """`num` different slots out of the evictable ones (nonzero), of which there are enough; may clear marks."""
