"""Places of the keys of the window's blocks.

While a block is in the window, the place of one of its keys changes only if an earlier block brings the row to the
device, since `plan` never evicts a row that a block of the window needs. So a key is looked up when its block enters
the window, and once more if an earlier block brings its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.kernels.key_filter import num_words, pass_keys, put_keys
from pipeline.records import I64, U64
from pipeline.storage.key_map import DEVICE, KeyMap, tier_of


@dataclass(slots=True)
class _Entered:
    """A block of the window."""

    keys_U: U64
    places_U: I64
    """Places of its keys."""
    away_N: I64
    """Positions of its keys that are not on the device."""


class Window:
    """Places of the keys of the window's blocks, which enter and leave in order."""

    def __init__(self, key_map: KeyMap) -> None:
        self._map = key_map
        self._blocks: list[_Entered] = []

    def forget(self) -> None:
        """Forget all places, because rows were moved by something other than `plan`."""
        self._blocks.clear()

    def find(self, keys_U: U64) -> I64:
        """[U] places of the keys of a block; -1 for unknown keys."""
        for block in self._blocks:
            if block.keys_U is keys_U:
                return block.places_U
        return self._map.find(keys_U)

    def enter(self, window: Sequence[U64], first_U: I64) -> list[I64]:
        """Add the blocks of the window with these keys, and return the places of the keys of each. `first_U`: places of
        the first block's keys, as returned by `find`."""
        while self._blocks and self._blocks[0].keys_U is not window[0]:
            self._blocks.pop(0)
        same = [block.keys_U is keys_U for block, keys_U in zip(self._blocks, window, strict=False)]
        # A window with fewer blocks than before follows a smaller look-ahead: the other blocks must not count.
        if len(self._blocks) > len(window) or not all(same):
            self.forget()
        for n in range(len(self._blocks), len(window)):
            places_U = self._map.find(window[n]) if n else first_U
            self._blocks.append(_Entered(window[n], places_U, np.flatnonzero(tier_of(places_U) != DEVICE)))
        return [block.places_U for block in self._blocks]

    def leave(self, keys_U: U64, arrived_A: U64) -> None:
        """Forget the block with these keys, which is planned and brought the rows of `arrived_A` to the device. Also
        forget earlier blocks, which evaluated or were refused and skipped."""
        while self._blocks and self._blocks[0].keys_U is not keys_U:
            self._blocks.pop(0)
        del self._blocks[:1]
        if self._blocks:
            bits_W = np.zeros(num_words(len(arrived_A)), np.uint64)
            put_keys(arrived_A, bits_W)
            for block in self._blocks:
                self._follow(block, bits_W)

    def _follow(self, block: _Entered, bits_W: U64) -> None:
        """Look up again the keys of a block that arrived on the device. `bits_W`: filter that passes them."""
        away_N, arrived_N = block.away_N, np.empty(len(block.away_N), np.bool_)
        self._map.threads.split(len(away_N), lambda a, b: pass_keys(block.keys_U, away_N[a:b], bits_W, arrived_N[a:b]))
        at = away_N[arrived_N]
        places = block.places_U[at] = self._map.find(block.keys_U[at])
        arrived_N[arrived_N] = tier_of(places) == DEVICE
        block.away_N = away_N[~arrived_N]
