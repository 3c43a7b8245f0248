"""Bound on the hits of any policy: optimal replacement (Belady, 1966), for a working set at a time.

After each block, the rows with the nearest next uses stay. Rows that the window needs are used next within L blocks, so
they stay if they fit, as `plan` demands. A training block's rows stay in any case, since it needs them all at once. An
evaluation moves no rows in a run; here it may bring rows in, so that the bound also holds there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.kernels.key_map import UNKNOWN
from pipeline.records import I32, I64, U64
from pipeline.storage.key_map import KeyMap

NO_USE = np.int32(np.iinfo(np.int32).max)


@dataclass(frozen=True, slots=True)
class Bound:
    """Counts of keys of blocks: all of them, and those that an optimal cache holds before the block."""

    keys: int = 0
    hits: int = 0
    first: int = 0
    """Keys that no block had before, which no cache holds."""

    def __add__(self, other: Bound) -> Bound:
        return Bound(self.keys + other.keys, self.hits + other.hits, self.first + other.first)

    @property
    def hit_rate(self) -> float:
        return self.hits / self.keys if self.keys else float("nan")


class NextUses:
    """Working sets of all blocks of one worker, as numbers of keys, and the next use of each. 8 bytes a key of a
    block."""

    def __init__(self) -> None:
        self._numbers = KeyMap()
        self.keys: list[I32] = []
        """Per block [U] numbers of its keys."""
        self.trains: list[bool] = []
        self.first: list[int] = []
        """Number of keys of each block that no block had before."""

    @property
    def num_keys(self) -> int:
        return len(self._numbers)

    def add(self, keys_U: U64, trains: bool) -> None:
        """Add the next block, with these distinct keys."""
        numbers_U = self._numbers.find(keys_U)
        new_U = numbers_U == UNKNOWN
        num_new = int(np.count_nonzero(new_U))
        numbers_U[new_U] = self.num_keys + np.arange(num_new)
        self._numbers.insert(keys_U[new_U], numbers_U[new_U])
        self.keys.append(numbers_U.astype(np.int32))
        self.trains.append(trains)
        self.first.append(num_new)

    @cached_property
    def uses(self) -> list[I32]:
        """Per block [U] number of the next block that has each of its keys; NO_USE if none has. Computed once, when all
        blocks are added."""
        uses: list[I32] = []
        next_N: I32 = np.full(self.num_keys, NO_USE, np.int32)
        for block in range(len(self.keys) - 1, -1, -1):
            uses.append(next_N[self.keys[block]])
            next_N[self.keys[block]] = block
        return uses[::-1]


def belady(next_uses: NextUses, capacity: int) -> Bound:
    """Bound on the hits of a cache of `capacity` rows."""
    return sum(belady_series(next_uses, capacity), Bound())


def belady_series(next_uses: NextUses, capacity: int) -> list[Bound]:
    """Bound on the hits of each block, in a cache that is optimal for all of them."""
    next_N: I32 = np.full(next_uses.num_keys, NO_USE, np.int32)
    held_N = np.zeros(next_uses.num_keys, np.bool_)
    held: I64 = np.empty(0, np.int64)
    bounds = []
    for block, (keys_U, trains) in enumerate(zip(next_uses.keys, next_uses.trains, strict=True)):
        hit_U = held_N[keys_U]
        bounds.append(Bound(len(keys_U), int(np.count_nonzero(hit_U)), next_uses.first[block]))
        next_N[keys_U] = next_uses.uses[block]
        held = np.concatenate([held, keys_U[~hit_U]])
        held_N[keys_U] = True
        if len(held) > capacity:
            use_H = next_N[held]
            if trains:
                # The block's own rows come first: they are in use.
                own_N = np.zeros(len(held_N), np.bool_)
                own_N[keys_U] = True
                use_H = np.where(own_N[held], np.int32(-1), use_H)
            leave = np.argpartition(use_H, capacity)[capacity:]
            held_N[held[leave]] = False
            held = np.delete(held, leave)
    return bounds
