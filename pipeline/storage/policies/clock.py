"""Clock policy: a hand moves over the slots and skips those that were used since it last passed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.clock import mark_slots, turn_hand
from pipeline.records import I32
from pipeline.storage.policies.uses import Uses


class Clock:
    """Clock scan of ScaleFreeCTR, with one in-use mark per slot. `plan` pins the slots that the window in flight needs
    and does not offer them. The hand passes the slots one by one, so threads cannot share the scan."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses
        self._marked_S = np.zeros(len(uses.last_N), np.uint8)
        self._hand = 0

    def touch(self, slots_U: I32) -> None:
        self._uses.threads.split(len(slots_U), lambda a, b: mark_slots(slots_U[a:b], self._marked_S))

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        assert num <= np.count_nonzero(evictable_S.view(np.bool_))
        victims_E = np.empty(num, np.int32)
        self._hand = turn_hand(self._marked_S, evictable_S, self._hand, victims_E)
        return victims_E
