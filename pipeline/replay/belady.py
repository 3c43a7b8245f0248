"""Bound on the hits of any policy: optimal replacement (Belady, 1966), for a working set at a time.

After each block, the rows with the nearest next uses stay. Rows that the window needs are used next within L blocks, so
they stay if they fit, as `plan` demands. A training block's rows stay in any case, since it needs them all at once. An
evaluation moves no rows in a run; here it may bring rows in, so that the bound also holds there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.kernels.key_map import UNKNOWN
from pipeline.records import I32, I64, U64, Block
from pipeline.replay.trace import Trace
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

    def __init__(self, working_sets: Iterable[tuple[U64, bool]]) -> None:
        """`working_sets`: distinct keys of each block, and whether the block trains."""
        numbers, known = KeyMap(), 0
        self.first: list[int] = []
        """Number of keys of each block that no block had before."""
        self.keys: list[I32] = []
        """Per block [U] numbers of its keys."""
        self.trains: list[bool] = []
        for keys_U, trains in working_sets:
            found_U = numbers.find(keys_U)
            new_U = found_U == UNKNOWN
            found_U[new_U] = known + np.arange(np.count_nonzero(new_U))
            numbers.insert(keys_U[new_U], found_U[new_U])
            self.first.append(int(np.count_nonzero(new_U)))
            known += self.first[-1]
            self.keys.append(found_U.astype(np.int32))
            self.trains.append(trains)
        self.num_keys = known
        self.uses: list[I32] = []
        """Per block [U] number of the next block that has each of its keys; NO_USE if none has."""
        next_N: I32 = np.full(known, NO_USE, np.int32)
        for block in range(len(self.keys) - 1, -1, -1):
            numbers_U = self.keys[block]
            self.uses.append(next_N[numbers_U])
            next_N[numbers_U] = block
        self.uses.reverse()


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


def next_uses_of(trace: Trace, blocks: Sequence[Block]) -> list[NextUses]:
    """Next uses of each worker's keys in these blocks."""
    return [NextUses((trace.keys(block)[rank], block.trains) for block in blocks) for rank in range(len(trace.shards))]
