"""Policies that choose which rows leave a slab, and the uses of rows on which they base their choices. `POLICIES` maps
the allowed values of `storage.device_policy` and `storage.host_policy` to classes. `PolicyName` in
`pipeline.settings.caps`, a lower layer, lists the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.lowest import foresee, lowest
from pipeline.kernels.slots import age_slots, mark_slots, read_uses, turn_hand
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


class LRU:
    """Least recently used, counted in blocks. Together with `LFU` on the host it is the cache hierarchy of HierPS."""

    def __init__(self, uses: Uses) -> None:
        self._uses = uses

    def touch(self, slots_U: I32) -> None:
        """Do nothing: `Uses` already records the last use."""

    def choose(self, num: int, evictable_S: NDArray[np.uint8]) -> I32:
        return self._uses.lowest(self._uses.last_N, num, evictable_S)


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


POLICIES: dict[str, type[Policy]] = {
    "clock": Clock, "lru": LRU, "lfu": LFU, "lfu_aged": AgedLFU, "foresight": Foresight,
}  # fmt: skip
