"""Bound on the hits of any policy: optimal replacement (Belady, 1966), one working set after another.

After each block, its own rows stay, since it needs all of them at once, and of the others those with the nearest next
uses. Rows that the window needs are used within the next L blocks, so they stay if they fit, as `plan` requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.kernels.key_map import UNKNOWN
from pipeline.records import I32, I64, U64
from pipeline.storage.key_map import KeyMap

NO_USE = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Uses:
    """Keys of all blocks, as numbers, and their next uses. Takes 8 bytes per key of a block."""

    keys: list[I32]
    """[U] key numbers of each block."""
    following: list[I32]
    """[U] number of the next block that uses each of these keys; NO_USE if there is none."""
    num_keys: int


def uses_of(blocks: Sequence[U64]) -> Uses:
    """Number the keys of all blocks [U], which are distinct within each block."""
    numbers, keys, following = KeyMap(), list[I32](), list[I32]()
    for keys_U in blocks:
        numbers_U = numbers.find(keys_U)
        new_U = numbers_U == UNKNOWN
        numbers_U[new_U] = len(numbers) + np.arange(np.count_nonzero(new_U))
        numbers.insert(keys_U[new_U], numbers_U[new_U])
        keys.append(numbers_U.astype(np.int32))
    next_N: I32 = np.full(len(numbers), NO_USE, np.int32)
    for block in range(len(blocks) - 1, -1, -1):
        following.append(next_N[keys[block]])
        next_N[keys[block]] = block
    return Uses(keys, following[::-1], len(numbers))


def belady_hits(uses: Uses, capacity: int) -> list[int]:
    """Hits of each block, for a cache of `capacity` rows that is optimal over all blocks."""
    next_N: I32 = np.full(uses.num_keys, NO_USE, np.int32)
    held_N = np.zeros(uses.num_keys, np.bool_)
    held: I64 = np.empty(0, np.int64)
    hits = []
    for keys_U, following_U in zip(uses.keys, uses.following, strict=True):
        hit_U = held_N[keys_U]
        hits.append(int(np.count_nonzero(hit_U)))
        held = np.concatenate([held, keys_U[~hit_U]])
        held_N[keys_U] = True
        if len(held) > capacity:
            # The block's own rows rank first.
            next_N[keys_U] = -1
            leave = np.argpartition(next_N[held], capacity)[capacity:]
            held_N[held[leave]] = False
            held = np.delete(held, leave)
        next_N[keys_U] = following_U
    return hits
