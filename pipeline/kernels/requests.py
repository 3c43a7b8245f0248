"""Sorting of keys by owner, and merging of the requests of all workers for the keys of one owner."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.room import need_cpu
from pipeline.records import I32, I64


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
