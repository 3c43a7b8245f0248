"""Limits of memory: kernels that only read cache lines at random places."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_line
from pipeline.records import U64


@cpu
def read_lines_only(lines_L: U64, keys_U: U64) -> int:
    """Read one entry per key from a table of `lines_L.size` entries, at the index given by the key's bits."""
    base, mask = lines_L.ctypes.data, np.uint64(lines_L.size - 1)
    total = np.uint64(0)
    for u in range(keys_U.size):
        if u + AHEAD < keys_U.size:
            prefetch_line(base + np.int64((keys_U[u + AHEAD] & mask) * np.uint64(8)))
        total += lines_L[keys_U[u] & mask]
    return np.int64(total & np.uint64(1))


@cpu
def chase_lines(words_L: U64, at: int, steps: int) -> int:
    """Read a chain of lines, each of which contains the place of the next, so that no two reads overlap."""
    place = np.uint64(at)
    for _ in range(steps):
        place = words_L[place]
    return np.int64(place)
