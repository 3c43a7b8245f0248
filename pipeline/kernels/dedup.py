"""Unique keys of a block, in order of first appearance, and each batch's own index into them."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.launch import array_library
from pipeline.records import F32, I32, TILE, U64


def unique_keys_reference(keys_V: U64) -> tuple[list[int], list[int]]:
    """The different keys in order of first appearance, and for each value the position of its key."""
    position: dict[int, int] = {}
    inverse = [position.setdefault(int(key), len(position)) for key in keys_V]
    return list(position), inverse


@cpu
def unique_keys(keys_V: U64, begin: int, table: I32, keys_U: U64, num_unique: int, inverse_V: I32) -> tuple[int, int]:
    """Look up or add `keys_V[begin:]`, filling `inverse_V`; stop early when `table` is half full.

    `table` [a power of two] is open addressing by the low bits of the key, which is a hash already; an entry is
    1 + the position in `keys_U` [>= half of it], 0 where empty. `inverse_V` may lie over the first half of
    `keys_V`'s bytes: value o is read at byte 8 o before byte 4 o is written. Returns the number of values done and of
    unique keys.
    """
    mask = np.uint64(table.size - 1)
    limit = table.size // 2
    for o in range(begin, keys_V.size):
        key = keys_V[o]
        at = key & mask
        while True:
            entry = table[at]
            if entry == 0:
                if num_unique == limit:
                    return o, num_unique
                keys_U[num_unique] = key
                num_unique += 1
                table[at] = num_unique
                inverse_V[o] = num_unique - 1
                break
            if keys_U[entry - 1] == key:
                inverse_V[o] = entry - 1
                break
            at = (at + np.uint64(1)) & mask
    return keys_V.size, num_unique


@cpu
def refill_table(keys_U: U64, num_unique: int, table: I32) -> None:
    """Enter the keys that are known already into a larger, empty table."""
    mask = np.uint64(table.size - 1)
    for u in range(num_unique):
        at = keys_U[u] & mask
        while table[at] != 0:
            at = (at + np.uint64(1)) & mask
        table[at] = u + 1


@cpu
def compact_batch(inverse_V: I32, batch: int, seen_U: I32, local_U: I32, unique_P: I32, counts_P: I32) -> int:
    """Turn positions in the block's unique keys into positions in the batch's own; count occurrences.

    `seen_U` holds the number of the batch that last saw a key (-1 at first), so nothing is cleared in between.
    """
    num_unique = 0
    for o in range(inverse_V.size):
        u = inverse_V[o]
        if seen_U[u] != batch:
            seen_U[u] = batch
            local_U[u] = num_unique
            unique_P[num_unique] = u
            counts_P[num_unique] = 0
            num_unique += 1
        p = local_U[u]
        counts_P[p] += 1
        inverse_V[o] = p
    return num_unique


@cpu
def group_sources(
    inverse_V: I32, bags_MB: I32, single_S: I32, multi_M: I32, num_examples: int, next_P: I32, source_V: I32
) -> None:
    """Group the occurrences by unique key as `BatchIndex.source_V` describes.

    `next_P` holds where each key's group begins, and is used up. An occurrence is written as
    example * F + field.
    """
    num_fields = single_S.size + multi_M.size
    for first in range(0, num_examples, TILE):
        past = min(first + TILE, num_examples)
        for s in range(single_S.size):
            for b in range(first, past):
                p = inverse_V[s * num_examples + b]
                source_V[next_P[p]] = b * num_fields + single_S[s]
                next_P[p] += 1
        for m in range(multi_M.size):
            for b in range(first, past):
                for o in range(bags_MB[m, b], bags_MB[m, b + 1]):
                    p = inverse_V[o]
                    source_V[next_P[p]] = b * num_fields + multi_M[m]
                    next_P[p] += 1


def sources_reference(
    inverse_V: I32, bags_MB: I32, single_S: list[int], multi_M: list[int], num_examples: int
) -> list[list[int]]:
    """Per unique key of the batch, its occurrences as example * F + field, in the order that `train` sums them."""
    groups: list[list[int]] = [[] for _ in range(int(inverse_V.max(initial=-1)) + 1)]
    num_fields = len(single_S) + len(multi_M)
    places = [(b, f, s * num_examples + b) for s, f in enumerate(single_S) for b in range(num_examples)]
    places += [
        (b, f, int(o))
        for m, f in enumerate(multi_M)
        for b in range(num_examples)
        for o in range(bags_MB[m, b], bags_MB[m, b + 1])
    ]
    for b, f, o in sorted(places, key=lambda place: place[0] // TILE):
        groups[inverse_V[o]].append(b * num_fields + f)
    return groups


def bag_scale(bags_MB: I32, multi_M: tuple[int, ...], mean_M: tuple[bool, ...], num_fields: int) -> F32:
    """[B * F] factor of each occurrence's gradient: 1 / length of the bag where it is pooled by mean, else 1."""
    xp = array_library(bags_MB)
    lengths_MB = xp.diff(bags_MB, axis=1)
    scale_BF: F32 = xp.ones((lengths_MB.shape[1], num_fields), np.float32)
    for m, (field, mean) in enumerate(zip(multi_M, mean_M, strict=True)):
        if mean:
            scale_BF[:, field] = np.float32(1) / xp.maximum(lengths_MB[m], 1).astype(np.float32)
    return scale_BF.reshape(-1)
