"""Sorting of keys by owner, and merging of the requests of all workers for the keys of one owner; and the number of
examples of a batch that contain a key. It is smaller than the key's number of occurrences if a list, or two fields of
one example, contain the key twice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numba import cuda, uint32

from pipeline.kernels import BLOCK_THREADS, cpu, gpu, need, need_cpu
from pipeline.kernels.launch import array_library, launch, on_host
from pipeline.records import I32, I64, TILE


@cpu
def order_by_owner(owner_U: I64, ends_W: I64, order_U: I32, place_U: I32) -> None:
    """Sort keys by owner (a stable sort). Sets order[n] to the key at place n, place[u] to the place of key u, and
    ends[w] to the place after the last key of owner w."""
    need_cpu(min(order_U.size, place_U.size), owner_U.size)
    ends_W[:] = 0
    for u in range(owner_U.size):
        ends_W[owner_U[u]] += 1
    begin = 0
    for w in range(ends_W.size):
        ends_W[w], begin = begin, begin + ends_W[w]
    for u in range(owner_U.size):
        place = ends_W[owner_U[u]]
        order_U[place] = u
        place_U[u] = place
        ends_W[owner_U[u]] = place + 1


def order_by_owner_reference(owner_U: I64) -> list[int]:
    return sorted(range(len(owner_U)), key=lambda u: int(owner_U[u]))


@cpu
def number_requests(requests_R: I32, number_U: I32, inverse_R: I32, unique_R: I32) -> int:
    """Number the requested keys in order of first appearance. `number_U` is -1 for every key, before and after. Sets
    inverse[r] to the number of request r's key and unique[p] to key p. Returns the number of unique keys."""
    need_cpu(inverse_R.size, requests_R.size)
    num = np.int32(0)
    for r in range(requests_R.size):
        u = requests_R[r]
        if number_U[u] < 0:
            need_cpu(unique_R.size, num + 1)
            number_U[u] = num
            unique_R[num] = u
            num += np.int32(1)
        inverse_R[r] = number_U[u]
    for p in range(num):
        number_U[unique_R[p]] = -1
    return int(num)


def number_requests_reference(requests_R: I32) -> tuple[list[int], list[int]]:
    unique = list(dict.fromkeys(requests_R.tolist()))
    return unique, [unique.index(u) for u in requests_R.tolist()]


@cpu
def sum_by_key(inverse_R: I32, counts_R: I32, sums_P: I32) -> None:
    """Set sums[p] to the sum of the counts of all requests for key p."""
    need_cpu(counts_R.size, inverse_R.size)
    sums_P[:] = 0
    for r in range(inverse_R.size):
        sums_P[inverse_R[r]] += counts_R[r]


def sum_by_key_reference(inverse_R: I32, counts_R: I32) -> list[int]:
    return [int(counts_R[inverse_R == p].sum()) for p in range(int(inverse_R.max(initial=-1)) + 1)]


TILE_WORDS = TILE // 32


def count_examples(source_V: I32, starts_P: I32, num_fields: int, counts_P: I32, lists_LB: I32 | None = None) -> None:
    """Set counts[p] to the number of distinct examples among occurrences `starts[p]` to `starts[p + 1]` - 1, encoded as
    in `BatchIndex.source_V`. `lists_LB`: starts of the item lists, if there are sequences."""
    need(len(starts_P), len(counts_P) + 1)
    if lists_LB is not None and lists_LB.size:
        counts_P[:] = _with_lists(source_V, starts_P, num_fields, lists_LB)
    elif on_host(source_V):
        count_examples_cpu(source_V, starts_P, num_fields, counts_P)
    else:
        launch(count_examples_cuda, len(counts_P), source_V, starts_P, num_fields, counts_P)


def _with_lists(source_V: I32, starts_P: I32, num_fields: int, lists_LB: I32) -> I32:
    """[P] counts if there are sequences. The values of sequences are not ordered by example."""
    xp, num_examples, num_keys = array_library(source_V), max(1, lists_LB.shape[1] - 1), len(starts_P) - 1
    begin, end = (int(starts_P[0]), int(starts_P[-1])) if num_keys else (0, 0)
    source_V, key_V = source_V[begin:end], xp.searchsorted(starts_P, xp.arange(begin, end), side="right") - 1
    # Item lists follow each other, so the starts of all their examples ascend.
    value_V = source_V - num_fields * (lists_LB.shape[1] - 1)
    starts = (lists_LB[:, :-1] - lists_LB[0, 0]).reshape(-1)
    of_list_V = (xp.searchsorted(starts, value_V, side="right") - 1) % num_examples
    example_V = xp.where(value_V < 0, source_V // num_fields, of_list_V)
    pairs = xp.unique(key_V * num_examples + example_V)
    counts_P: I32 = xp.bincount(pairs // num_examples, minlength=num_keys)
    return counts_P


def count_examples_reference(source_V: I32, starts_P: I32, num_fields: int) -> list[int]:
    return [len({int(s) // num_fields for s in source_V[a:b]}) for a, b in pairwise(starts_P)]


@cpu
def count_one(source_V: I32, begin: int, end: int, num_fields: int, seen: I32) -> int:
    """Count the examples of one key. Occurrences come tile by tile, so one bit per example of a tile is enough. `seen`:
    [TILE / 32] words."""
    tile, count = -1, 0
    for j in range(begin, end):
        example = source_V[j] // num_fields
        if example // TILE != tile:
            tile = example // TILE
            for word in range(TILE_WORDS):
                seen[word] = 0
        at, bit = (example % TILE) // 32, np.uint32(1) << np.uint32(example % 32)
        if seen[at] & bit == 0:
            seen[at] |= bit
            count += 1
    return count


@cpu
def count_examples_cpu(source_V: I32, starts_P: I32, num_fields: int, counts_P: I32) -> None:
    seen = np.empty(TILE_WORDS, np.uint32)
    for p in range(counts_P.size):
        counts_P[p] = count_one(source_V, starts_P[p], starts_P[p + 1], num_fields, seen)


@gpu
def count_examples_cuda(source_V: I32, starts_P: I32, num_fields: int, counts_P: I32) -> None:
    # Shared memory; the threads of a warp write to different banks.
    seen = cuda.shared.array((TILE_WORDS, BLOCK_THREADS), uint32)[:, cuda.threadIdx.x]
    for p in range(cuda.grid(1), counts_P.size, cuda.gridsize(1)):
        counts_P[p] = count_one(source_V, starts_P[p], starts_P[p + 1], num_fields, seen)
