"""Bound on the hits of any policy: optimal replacement (Belady, 1966), one working set after another.

After each block, the rows with the nearest next use stay. Rows that the window needs are used within the next L blocks,
so they stay if they fit, as `plan` requires. The rows of a training block always stay, since it needs all of them at
once. In a run, an evaluation moves no rows; here it may bring rows in, so the bound also holds for evaluations.
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
    """Key counts of one or more blocks: all keys, and those that an optimal cache contains before the block."""

    keys: int = 0
    hits: int = 0
    first: int = 0
    """Keys that appear for the first time, which no cache can contain."""

    def __add__(self, other: Bound) -> Bound:
        return Bound(self.keys + other.keys, self.hits + other.hits, self.first + other.first)

    @property
    def hit_rate(self) -> float:
        return self.hits / self.keys if self.keys else float("nan")


class AllUses:
    """Working sets of all blocks of one worker, as key numbers, and the next use of each key. Takes 8 bytes per key of
    a block."""

    def __init__(self) -> None:
        self._numbers = KeyMap()
        self.keys: list[I32] = []
        """[U] key numbers of each block."""
        self.trains: list[bool] = []
        self.first: list[int] = []
        """Number of keys of each block that appear for the first time."""

    @property
    def num_keys(self) -> int:
        return len(self._numbers)

    def add(self, keys_U: U64, trains: bool) -> None:
        """Append a block with these distinct keys."""
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
        """For each block, [U] number of the next block that uses each key; NO_USE if there is none. Computed once,
        after all blocks have been added."""
        uses: list[I32] = []
        next_N: I32 = np.full(self.num_keys, NO_USE, np.int32)
        for block in range(len(self.keys) - 1, -1, -1):
            uses.append(next_N[self.keys[block]])
            next_N[self.keys[block]] = block
        return uses[::-1]


def belady(next_uses: AllUses, capacity: int) -> Bound:
    """Bound on the hits of a cache of `capacity` rows."""
    return sum(belady_series(next_uses, capacity), Bound())


def belady_series(next_uses: AllUses, capacity: int) -> list[Bound]:
    """Bound on the hits of each block, for a cache that is optimal over all blocks."""
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
                # The block's own rows rank first: they are in use.
                own_N = np.zeros(len(held_N), np.bool_)
                own_N[keys_U] = True
                use_H = np.where(own_N[held], np.int32(-1), use_H)
            leave = np.argpartition(use_H, capacity)[capacity:]
            held_N[held[leave]] = False
            held = np.delete(held, leave)
    return bounds
