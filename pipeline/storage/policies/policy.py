"""Protocol of a policy, which chooses the rows that leave a slab."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.records import I32
from pipeline.storage.policies.uses import Uses


class Policy(Protocol):
    """A policy chooses among rows that no block of the window needs. It sees slots and their uses, never rows.

    Only `plan` calls it, in block order, so its choices depend on the sequence of keys and on nothing else.
    """

    def __init__(self, uses: Uses) -> None:
        """`uses`: uses of the row in each slot, kept up to date by `Slots`."""

    def touch(self, slots_U: I32) -> None:
        """Record that the block being planned uses or fills these slots. Slots of the device are touched whenever a
        training block uses them, those of the host when they are filled; evaluation touches none."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        """Return `num` distinct slots among those with `evictable_S` 1, where it is 0 for all others; there must be
        enough. May change `evictable_S` and the policy's own state. The caller may evict only some of them, so the
        others must not be forgotten."""
