"""Protocol of a policy that chooses the rows that leave a slab."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.records import I32
from pipeline.storage.policies.uses import Uses


class Policy(Protocol):
    """A policy chooses among rows that no block of the window needs. It sees slots and their uses, never rows.

    Only `plan` calls it, in block order, so its choices depend only on the sequence of keys.
    """

    def __init__(self, uses: Uses) -> None:
        """`uses`: uses of the row in each slot, kept up to date by `Slots`."""

    def touch(self, slots_U: I32) -> None:
        """Record that the block being planned uses or fills these slots. Device slots are touched whenever a training
        block uses them, host slots when they are filled. Evaluation touches none."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        """Return `num` distinct slots for which `evictable_S` is 1 (it is 0 for all others); there must be enough. May
        change `evictable_S` and the policy's state. The caller may evict only some of the returned slots, so the policy
        must still consider the others."""
