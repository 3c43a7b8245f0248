"""Places of the keys of the window's blocks, each looked up in the map once.

While a block is in the window, the place of one of its keys changes only if a block before it brings the row to the
device: `plan` lets no row leave that a block of the window needs. So of the keys that are not on the device it is
enough to know which block of the window has them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.kernels.tiers import follow_arrivals
from pipeline.records import I32, I64, U64
from pipeline.storage.key_map import DEVICE, KeyMap, tier_of
from pipeline.storage.newest import Newest


@dataclass(frozen=True, slots=True)
class _Entered:
    """A block of the window, and those of its keys that were not on the device when it came into the window."""

    keys_U: U64
    places_U: I64
    """Present places of its keys."""
    away_N: I64
    """Positions of those keys, which are occurrences `first` to `first` + N of keys of the window."""
    first: int
    earlier_N: I64
    """Newest earlier occurrence of each."""


class Window:
    """Places of the keys of the blocks of the window, which come and go in order."""

    def __init__(self, key_map: KeyMap) -> None:
        self._map = key_map
        self.forget()

    def forget(self) -> None:
        """Forget all places, since rows moved otherwise than by `plan`."""
        self._blocks: list[_Entered] = []
        self._newest = Newest()
        self._slots_N: I32 = np.empty(0, np.int32)
        """Slot on the device of each occurrence from `_newest.first` on; -1 as long as it is not there."""

    def find(self, keys_U: U64) -> I64:
        """[U] places of the keys of a block, -1 for unknown ones."""
        for block in self._blocks:
            if block.keys_U is keys_U:
                return block.places_U
        return self._map.find(keys_U)

    def enter(self, window: Sequence[U64], first_U: I64) -> list[I64]:
        """Take in the blocks of the window with these keys, and return the places of the keys of each. `first_U`:
        places of those of the first block."""
        while self._blocks and self._blocks[0].keys_U is not window[0]:
            self._leave()
        same = [block.keys_U is keys_U for block, keys_U in zip(self._blocks, window, strict=False)]
        # A window of fewer blocks than before comes after a smaller look-ahead: the other blocks must not count.
        if len(self._blocks) > len(window) or not all(same):
            self.forget()
        for n in range(len(self._blocks), len(window)):
            self._enter(window[n], self._map.find(window[n]) if n else first_U)
        return [block.places_U for block in self._blocks]

    def _enter(self, keys_U: U64, places_U: I64) -> None:
        away_N = np.flatnonzero(tier_of(places_U) != DEVICE)
        first, earlier_N = self._newest.end, self._newest.add(keys_U[away_N])
        self._blocks.append(_Entered(keys_U, places_U, away_N, first, earlier_N))
        self._slots_N = np.concatenate([self._slots_N, np.full(len(away_N), -1, np.int32)])

    def arrive(self, keys_U: U64, slots_U: I32) -> None:
        """Record the slots on the device of the keys of a block, all of whose rows are there once it is planned. The
        blocks before it leave: they evaluated, or were refused and left out."""
        while self._blocks and self._blocks[0].keys_U is not keys_U:
            self._leave()
        if self._blocks:
            first, away_N = self._newest.first, self._blocks[0].away_N
            self._slots_N[: len(away_N)] = slots_U[away_N]
            for later in self._blocks[1:]:
                begin, arrays = later.first - first, (later.places_U, self._slots_N)
                self._map.threads.split(
                    len(later.away_N),
                    lambda a, b: follow_arrivals(later.earlier_N[a:b], later.away_N[a:b], begin + a, first, *arrays),  # noqa: B023
                )
            self._leave()

    def _leave(self) -> None:
        num = len(self._blocks.pop(0).away_N)
        self._newest.first += num
        self._slots_N = self._slots_N[num:]
