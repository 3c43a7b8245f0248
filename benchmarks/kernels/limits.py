"""Limits of memory: kernels that only read the cache lines that ours need, and plain copies."""

from __future__ import annotations

import numpy as np

from benchmarks.kernels.cases import Run, by_threads
from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_ahead, prefetch_line
from pipeline.records import I32, U32, U64


@cpu
def read_rows_only(slab_SW: U32, at_U: I32) -> None:
    """Gather rows to a single place, which stays in the L1 cache, so that only reading takes time."""
    base, row_bytes = slab_SW.ctypes.data, slab_SW.shape[1] * 4
    out_W = np.empty(slab_SW.shape[1], np.uint32)
    for u in range(at_U.size):
        prefetch_ahead(base, at_U, u, row_bytes)
        row_W = slab_SW[at_U[u]]
        for w in range(out_W.size):
            out_W[w] += row_W[w]


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


def copies(source_UW: U32, out_UW: U32) -> dict[str, Run]:
    """Runs that copy the same rows in order, by memcpy."""
    return by_threads(
        "copy",
        lambda threads, repeat: threads.split(len(out_UW), lambda a, b: np.copyto(out_UW[a:b], source_UW[a:b])),
    )


@cpu
def chase_lines(words_L: U64, at: int, steps: int) -> int:
    """Read a chain of lines, each of which contains the place of the next, so that no two reads overlap."""
    place = np.uint64(at)
    for _ in range(steps):
        place = words_L[place]
    return np.int64(place)
