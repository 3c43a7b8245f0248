"""Search for the page of each key by the fences: the top 32 bits of each page's first key."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_line
from pipeline.kernels.room import need_cpu
from pipeline.records import I32, U32, U64


def find_pages_reference(fences_N: U32, keys_P: U64, pages_P: I32) -> None:
    pages_P[:] = np.maximum(np.searchsorted(fences_N, keys_P >> np.uint64(32), side="right") - 1, 0)


@cpu
def find_pages(fences_N: U32, keys_P: U64, pages_P: I32) -> None:
    """Write the only page that may contain each key: the last page whose fence is at most the key's top 32 bits, or
    page 0. `fences_N` [N >= 1] is ascending.

    Keys are hashes, so a key's value predicts its page to within a few hundred pages. The fence of that page predicts
    it to within a page or two. The rest is an exponential search.
    """
    need_cpu(pages_P.size, keys_P.size)
    need_cpu(fences_N.size, 1)
    base = fences_N.ctypes.data
    for p in range(keys_P.size):
        if p + AHEAD < keys_P.size:
            prefetch_line(base + 4 * _page_near(fences_N, 0, 0, keys_P[p + AHEAD]))
        first = _page_near(fences_N, 0, 0, keys_P[p])
        pages_P[p] = _page_near(fences_N, first, np.int64(fences_N[first]), keys_P[p])
    for p in range(keys_P.size):
        if p + AHEAD < keys_P.size:
            prefetch_line(base + 4 * np.int64(pages_P[p + AHEAD]))
        pages_P[p] = _page_from(fences_N, np.int64(pages_P[p]), np.int64(keys_P[p] >> np.uint64(32)))


@cpu
def _page_near(fences_N: U32, page: int, fence: int, key: np.uint64) -> int:
    """Guess the page of a key from another page and its fence, assuming that keys are evenly distributed."""
    guess = page + ((np.int64(key >> np.uint64(32)) - fence) * fences_N.size >> 32)
    return int(min(max(guess, np.int64(0)), np.int64(fences_N.size - 1)))


@cpu
def _page_from(fences_N: U32, page: int, prefix: int) -> int:
    """Search for the page of a prefix, starting from any page."""
    step = 1
    if fences_N[page] <= prefix:
        low, high = page, page + 1
        while high < fences_N.size and fences_N[high] <= prefix:
            low = high
            high += step
            step *= 2
        high = min(high, fences_N.size)
    else:
        low, high = page - 1, page
        while low >= 0 and fences_N[low] > prefix:
            high = low
            low -= step
            step *= 2
        low = max(low, -1)
    while high - low > 1:
        middle = (low + high) // 2
        if fences_N[middle] <= prefix:
            low = middle
        else:
            high = middle
    return max(low, 0)
