"""Belady's optimum (1966) for a single slab: the bound that every policy is measured against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.records import I64, U64

NO_USE = np.iinfo(np.int64).max


def next_blocks(blocks: Sequence[U64]) -> tuple[list[I64], list[I64], int]:
    """Number the keys of all blocks densely. Returns for each block the numbers [U] of its keys and the blocks [U] that
    use them next (NO_USE: none), and how many keys there are."""
    keys_K, numbers = np.unique(np.concatenate(blocks), return_inverse=True)
    ends = np.cumsum([len(keys_U) for keys_U in blocks])[:-1]
    ids = np.split(numbers.astype(np.int64), ends)
    seen_K = np.full(len(keys_K), NO_USE)
    uses: list[I64] = []
    for n in range(len(ids) - 1, -1, -1):
        uses.append(seen_K[ids[n]])
        seen_K[ids[n]] = n
    return ids, uses[::-1], len(keys_K)


def belady_hits(blocks: Sequence[U64], capacity: int) -> list[int]:
    """Keys of each block that lie in a slab of `capacity` rows before the block is planned, if the rows with the
    farthest next uses leave."""
    ids, uses, num_keys = next_blocks(blocks)
    next_K = np.full(num_keys, -1, np.int64)
    """Next use of each key in the slab; -1: not in the slab."""
    hits, held = [], 0
    for ids_U, uses_U in zip(ids, uses, strict=True):
        hits.append(int(np.count_nonzero(next_K[ids_U] >= 0)))
        held += len(ids_U) - hits[-1]
        next_K[ids_U] = uses_U
        if held > capacity:
            pinned_U = next_K[ids_U].copy()
            next_K[ids_U] = -1
            in_slab = np.flatnonzero(next_K >= 0)
            leave = held - capacity
            next_K[in_slab[np.argpartition(next_K[in_slab], len(in_slab) - leave)[len(in_slab) - leave :]]] = -1
            next_K[ids_U] = pinned_U
            held = capacity
    return hits
