"""dedup on a GPU: twins of the functions in `kernels/dedup.py`, with identical results.

For every key, the hash table keeps the lowest position at which the key appears, whatever the order of threads.
Counting these first positions in ascending order numbers the keys in order of first appearance, without sorting keys.
Cumulative sums and sorts come from the array library: CuPy on a GPU.

U unique keys of a block    P unique keys of a batch    C slots of the table    T tiles of a batch
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu, need
from pipeline.kernels.launch import array_library, launch
from pipeline.records import I32, RESERVED, TILE, U64, Array

UNSEEN = np.int32(2**31 - 1)
TOO_MANY = np.int32(2**31 - 1)
MAX_PROBES = 1 << 10
"""Maximum number of slots searched for a key. In a half-full table a hundred are enough; in a full table every key
would search all slots."""


def unique_keys_cuda(
    keys_V: U64, table_C: U64, first_C: I32, position_V: I32, limit: int, keys_U: U64, num_unique: I32
) -> None:
    """Write the block's unique keys into `keys_U` [`limit`] and the position of each value's key into `position_V`.

    `table_C` and `first_C` [a power of two, at least 2 x `limit`] are overwritten. If there are more than `limit` keys,
    `num_unique` [1] exceeds `limit` and all other results are invalid.
    """
    xp = array_library(keys_V)
    num_values = len(keys_V)
    need(len(position_V), num_values)
    need(len(keys_U), limit)
    need(min(len(table_C), len(first_C)), 2 * limit)
    table_C.fill(RESERVED)
    first_C.fill(UNSEEN)
    num_unique.fill(0)
    launch(insert_keys, num_values, keys_V, table_C, first_C, position_V, num_unique)
    number_V = _number(xp, position_V, first_C)
    if num_values:
        num_unique[:] = xp.maximum(num_unique, number_V[-1:])
    launch(keep_firsts, num_values, keys_V, position_V, number_V, first_C, keys_U)
    launch(look_up_number, num_values, position_V, first_C, limit, position_V)


def index_batch_cuda(
    position_V: I32, bags_MB: I32, single_S: I32, multi_M: I32, first_U: I32,
    unique_P: I32, starts_P: I32, inverse_V: I32, source_V: I32, num_unique: I32,
) -> None:  # fmt: skip
    """Make one batch's index as described in `BatchIndex`: `unique_P` [V], `starts_P` [V + 1], `inverse_V`, `source_V`;
    entries beyond P are not written. `num_unique` [1] becomes P. `first_U` [U] is overwritten."""
    xp = array_library(position_V)
    num_values, num_examples = len(position_V), bags_MB.shape[1] - 1
    need(min(len(unique_P), len(starts_P), len(inverse_V), len(source_V)), num_values)
    first_U.fill(UNSEEN)
    launch(find_first, num_values, position_V, first_U)
    number_V = _number(xp, position_V, first_U)
    num_unique[:] = number_V[-1:] if num_values else 0
    launch(keep_firsts, num_values, position_V, position_V, number_V, first_U, unique_P)
    launch(look_up_number, num_values, position_V, first_U, len(first_U), inverse_V)
    num_fields = len(single_S) + len(multi_M)
    # The tiles of sequences follow those of fields. The number of sequence values is known only on the GPU.
    num_lists = bags_MB.shape[0] - len(multi_M)
    num_tiles = -(-num_examples // TILE) + (-(-num_values // (TILE * num_fields)) if num_lists else 0)
    small = num_values * num_tiles < 2**31
    tile_V = xp.empty(num_values, np.int32 if small else np.int64)
    launch(tile_of, num_values, inverse_V, bags_MB, len(single_S), len(multi_M), num_tiles, tile_V)
    # The stable sort keeps the order of the values within a tile: field by field, example by example.
    order_V = xp.argsort(tile_V, kind="stable")
    starts_P[:1] = 0
    launch(group_values, num_values, order_V, inverse_V, bags_MB, single_S, multi_M, source_V, starts_P)


def _number(xp: Any, position_V: I32, first_C: I32) -> I32:
    """[V] number of unique keys up to and including each value."""
    is_first_V = xp.empty(len(position_V), np.int8)
    launch(mark_first, len(position_V), position_V, first_C, is_first_V)
    number_V: I32 = xp.cumsum(is_first_V, dtype=np.int32)
    return number_V


@gpu
def insert_keys(keys_V: U64, table_C: U64, first_C: I32, position_V: I32, num_unique: I32) -> None:
    """Find or add each key: write its slot into `position_V` and its lowest position into `first_C`. If a key finds no
    slot, `num_unique` becomes TOO_MANY."""
    mask = np.uint64(table_C.size - 1)
    for i in range(cuda.grid(1), keys_V.size, cuda.gridsize(1)):
        key = keys_V[i]
        at = key & mask
        position_V[i] = 0
        probes = 0
        while probes < MAX_PROBES:
            found = table_C[at]
            if found == RESERVED:
                found = cuda.atomic.cas(table_C, at, RESERVED, key)
                if found == RESERVED:
                    found = key
            if found == key:
                position_V[i] = np.int32(at)
                # A stale value can only be too large, which at worst causes a needless atomic minimum.
                if first_C[at] > i:
                    cuda.atomic.min(first_C, at, i)
                break
            at = (at + np.uint64(1)) & mask
            probes += 1
        if probes == MAX_PROBES:
            num_unique[0] = TOO_MANY


@gpu
def find_first(position_V: I32, first_U: I32) -> None:
    for i in range(cuda.grid(1), position_V.size, cuda.gridsize(1)):
        if first_U[position_V[i]] > i:
            cuda.atomic.min(first_U, position_V[i], i)


@gpu
def mark_first(position_V: I32, first_C: I32, is_first_V: Array) -> None:
    for i in range(cuda.grid(1), position_V.size, cuda.gridsize(1)):
        is_first_V[i] = 1 if first_C[position_V[i]] == i else 0


@gpu
def keep_firsts(values_V: Array, position_V: I32, number_V: I32, first_C: I32, out_U: Array) -> None:
    """Write the value at each key's first appearance into `out_U` at the key's number, and that number into `first_C`
    in place of the position."""
    for i in range(cuda.grid(1), position_V.size, cuda.gridsize(1)):
        number = number_V[i] - 1
        if number_V[i] != (number_V[i - 1] if i > 0 else 0) and number < out_U.size:
            out_U[number] = values_V[i]
            first_C[position_V[i]] = number


@gpu
def look_up_number(position_V: I32, number_C: I32, limit: int, out_V: I32) -> None:
    """Write the number of each value's key, at most `limit` - 1, so that the next kernels stay within their arrays even
    if there are more keys than `limit`."""
    for i in range(cuda.grid(1), position_V.size, cuda.gridsize(1)):
        out_V[i] = min(number_C[position_V[i]], limit - 1)


@cpu
def example_of(o: int, bags_MB: I32, num_single: int) -> tuple[int, int]:
    """Return the example and field of value `o` of a batch, which must not belong to a sequence. Fields are numbered in
    the order of the values: single-valued first."""
    num_examples = bags_MB.shape[1] - 1
    if o < num_single * num_examples:
        return o % num_examples, o // num_examples
    m = 0
    while o >= bags_MB[m, num_examples]:
        m += 1
    # Find the last bag that begins at or before `o`. An empty bag begins where the next one does.
    low, high = 0, num_examples
    while high - low > 1:
        middle = (low + high) // 2
        if bags_MB[m, middle] <= o:
            low = middle
        else:
            high = middle
    return low, num_single + m


@gpu
def tile_of(inverse_V: I32, bags_MB: I32, num_single: int, num_multi: int, num_tiles: int, tile_V: Array) -> None:
    """Write the sort key of each value: its key's number, then its tile."""
    num_fields = num_single + num_multi
    # The first value of a sequence.
    first = bags_MB[num_multi, 0] if bags_MB.shape[0] > num_multi else inverse_V.size
    for o in range(cuda.grid(1), inverse_V.size, cuda.gridsize(1)):
        if o < first:
            example, _ = example_of(o, bags_MB, num_single)
            tile = example // TILE
        else:
            tile = ((bags_MB.shape[1] - 1) * num_fields + o - first) // (TILE * num_fields)
        tile_V[o] = np.int64(inverse_V[o]) * num_tiles + tile


@gpu
def group_values(
    order_V: Array, inverse_V: I32, bags_MB: I32, single_S: I32, multi_M: I32, source_V: I32, starts_P: I32
) -> None:
    """Write the sources of sorted values and the start of each key's group. Key numbers increase by one from group to
    group."""
    num_fields = single_S.size + multi_M.size
    first = bags_MB[multi_M.size, 0] if bags_MB.shape[0] > multi_M.size else inverse_V.size
    for j in range(cuda.grid(1), order_V.size, cuda.gridsize(1)):
        o = order_V[j]
        if o < first:
            example, field = example_of(o, bags_MB, single_S.size)
            of = single_S[field] if field < single_S.size else multi_M[field - single_S.size]
            source_V[j] = example * num_fields + of
        else:
            source_V[j] = (bags_MB.shape[1] - 1) * num_fields + o - first
        p = inverse_V[o]
        if j + 1 == order_V.size or inverse_V[order_V[j + 1]] != p:
            starts_P[p + 1] = j + 1
