"""Key map: key -> place. Only `plan` uses it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.hint import LINE_BYTES
from pipeline.kernels.key_map import (
    MAX_GROWTH,
    MIN_LINES_OF_6,
    NUM_PARTITIONS,
    SPARE_LINES,
    copy_tables,
    count_keys,
    enter_keys,
    find_places,
    group_keys,
    least_sizes,
    move_keys,
    remove_keys,
)
from pipeline.kernels.slots import DEVICE as DEVICE
from pipeline.kernels.slots import DISK as DISK
from pipeline.kernels.slots import HOST as HOST
from pipeline.kernels.slots import TIER_SHIFT
from pipeline.machine.limits import aligned_empty
from pipeline.machine.threads import PARTS_PER_THREAD
from pipeline.records import I32, I64, U64
from pipeline.storage.plan_threads import ALONE, PlanThreads

MAX_ROWS = 1 << TIER_SHIFT
"""Maximum number of rows per tier that a place can address."""
MAX_LOAD = 0.925
MIN_BYTES = int(LINE_BYTES / 6 / MAX_LOAD)
"""Minimum bytes of the map per key."""
FIRST_LINES = 8
"""Initial number of home lines of a partition."""
MIN_PART = 1 << 12
"""Minimum number of keys per additional thread."""
GROWTH_STEPS = 5
"""Number of steps in which a partition doubles in size. With 10, the map takes 3 % less memory, but growing copies
twice as many keys."""


def place(tier: int, at: I32 | I64) -> I64:
    """Places of rows `at` (below MAX_ROWS) of a tier. Places are never negative: `KeyMap.find` returns -1 for unknown
    keys."""
    return at.astype(np.int64) | np.int64(tier << TIER_SHIFT)


def tier_of(places_U: I64) -> I64:
    """Tier of each place: `DEVICE`, `HOST` or `DISK`; -1 for an unknown key."""
    return places_U >> TIER_SHIFT


def row_of(places_U: I64) -> I64:
    """Slot of each place within its tier. For places on disk, use `Chunks.positions_of` to get the log position."""
    return places_U & np.int64(MAX_ROWS - 1)


class KeyMap:
    """Hash table in 256 partitions. A partition that is 92.5 % full grows by 15 %. Each partition grows at different
    sizes, so that few grow at the same time.

    The map takes 12.4 bytes per key from 7 million keys, at most 15.4 from 1 million keys, and at least 640 KiB.
    """

    def __init__(self, threads: PlanThreads = ALONE) -> None:
        """`threads`: threads that share the work of a call. Their number does not affect results."""
        self.threads = threads
        self._words: list[U64] = []
        self._tables_P2 = np.zeros((NUM_PARTITIONS, 2), np.int64)
        """Address and number of home lines of each partition's table. `_words` holds the memory."""
        self._counts_P: I64 = np.zeros(NUM_PARTITIONS, np.int64)
        self._make(SIZES[:, 0])

    def __len__(self) -> int:
        return int(self._counts_P.sum())

    @property
    def num_bytes(self) -> int:
        return _bytes_of(self._tables_P2[:, 1])

    def find(self, keys_U: U64) -> I64:
        """[U] place of each key; -1 if the key is not in the map."""
        places_U = np.empty(len(keys_U), np.int64)
        self._by_key(len(keys_U), lambda a, b: find_places(self._tables_P2, keys_U[a:b], places_U[a:b]))
        return places_U

    def move(self, keys_U: U64, places_U: I64) -> None:
        """Change the places of keys in the map."""
        self._by_key(len(keys_U), lambda a, b: move_keys(self._tables_P2, keys_U[a:b], places_U[a:b]))

    def insert(self, keys_U: U64, places_U: I64) -> None:
        """Add keys, none of which may be in the map."""
        more_P = _counts_of(keys_U)
        lines_P = _lines_for(self._counts_P + more_P)
        self._resize(np.flatnonzero(lines_P > self._tables_P2[:, 1]), lines_P)
        self._counts_P += more_P
        self._by_partition(
            keys_U, places_U, more_P, lambda keys_N, at_N: _check_room(enter_keys(self._tables_P2, keys_N, at_N))
        )

    def remove(self, keys_U: U64) -> None:
        """Remove keys, which must be in the map. Memory is not released until `shrink`."""
        fewer_P = _counts_of(keys_U)
        self._counts_P -= fewer_P
        # Grouping takes places as well; those of removed keys are used by nothing.
        unused_U = np.zeros(len(keys_U), np.int64)
        self._by_partition(keys_U, unused_U, fewer_P, lambda keys_N, _: remove_keys(self._tables_P2, keys_N))

    def bytes_with(self, new_keys_U: U64) -> int:
        """Size of the map in bytes after these keys, none of which are in it, are inserted."""
        return _bytes_of(np.maximum(_lines_for(self._counts_P + _counts_of(new_keys_U)), self._tables_P2[:, 1]))

    def reserve(self, num_keys: int) -> None:
        """Grow an empty map to this capacity in one step. Growing step by step would copy each key 7 times."""
        assert not len(self)
        self._make(_lines_for(np.full(NUM_PARTITIONS, num_keys / NUM_PARTITIONS)))

    def shrink(self) -> None:
        """Release the memory that the current number of keys does not need."""
        lines_P = _lines_for(self._counts_P)
        self._resize(np.flatnonzero(lines_P < self._tables_P2[:, 1]), lines_P)

    def _by_key(self, num_keys: int, work: Callable[[int, int], None]) -> None:
        self.threads.split(num_keys, work, MIN_PART)

    def _by_partition(self, keys_U: U64, places_U: I64, counts_P: I64, work: Callable[[U64, I64], None]) -> None:
        """Do work on keys and their places, which are ordered by partition and split at partition boundaries.
        `counts_P`: number of keys per partition."""
        if not len(keys_U):
            return
        keys_N, places_N = np.empty_like(keys_U), np.empty_like(places_U)
        group_keys(keys_U, places_U, counts_P, keys_N, places_N)
        ends = np.concatenate([[0], np.cumsum(counts_P)]).tolist()
        parts = min(PARTS_PER_THREAD * self.threads.num_threads, -(-len(keys_U) // MIN_PART))
        self.threads.split(
            NUM_PARTITIONS,
            lambda a, b: work(keys_N[ends[a] : ends[b]], places_N[ends[a] : ends[b]]),
            -(-NUM_PARTITIONS // parts),
        )

    def _make(self, lines_P: I64) -> None:
        self._words = [np.empty((0, 8), np.uint64)] * NUM_PARTITIONS
        for p, num_lines in enumerate(lines_P.tolist()):
            self._words[p], self._tables_P2[p] = _table(num_lines)
            self._words[p][:] = 0

    def _resize(self, partitions: I64, lines_P: I64) -> None:
        """Resize these partitions to these numbers of home lines."""
        while len(partitions):
            self._copy(partitions, np.minimum(lines_P[partitions], MAX_GROWTH * self._tables_P2[partitions, 1]))
            partitions = partitions[self._tables_P2[partitions, 1] != lines_P[partitions]]

    def _copy(self, partitions: I64, lines_N: I64) -> None:
        """Copy these partitions into tables with these numbers of home lines, at most MAX_GROWTH times the current
        ones."""
        tables_P2, words = self._tables_P2.copy(), self._words.copy()
        for p, num_lines in zip(partitions.tolist(), lines_N.tolist(), strict=True):
            words[p], tables_P2[p] = _table(num_lines)
        was_P2 = self._tables_P2
        self.threads.split(
            len(partitions), lambda a, b: _check_room(copy_tables(was_P2, partitions[a:b], tables_P2)), 1
        )
        self._tables_P2, self._words = tables_P2, words


def _table(num_lines: int) -> tuple[U64, tuple[int, int]]:
    """Memory of a table with `num_lines` home lines, and its entry in `_tables_P2`."""
    words_L8 = aligned_empty((num_lines + SPARE_LINES, 8), np.uint64)
    return words_L8, (words_L8.ctypes.data, num_lines)


def _check_room(was_enough: bool) -> None:
    if not was_enough:
        raise ValueError(
            f"more than {5 * SPARE_LINES} keys agree in the bits that choose their place in the key map, which happens "
            "only if keys are constructed for it; hash the values differently"
        )


def bytes_for(num_keys: int) -> int:
    """Size in bytes of a map of `num_keys` keys that are evenly distributed over the partitions."""
    return _bytes_of(_lines_for(np.full(NUM_PARTITIONS, num_keys / NUM_PARTITIONS)))


def most_bytes_for(num_keys: int) -> int:
    """Size in bytes that a map of `num_keys` keys almost never exceeds: five standard deviations more per partition."""
    return bytes_for(num_keys + int(5 * math.sqrt(NUM_PARTITIONS * num_keys)))


def _counts_of(keys_U: U64) -> I64:
    counts_P = np.empty(NUM_PARTITIONS, np.int64)
    count_keys(keys_U, counts_P)
    return counts_P


def _sizes() -> I64:
    """[256, 120] possible numbers of home lines of each partition, never descending. The sizes of partition p are
    FIRST_LINES * 2**((i + p / 256) / 5), rounded down. Up to rounding, each is 15 % larger than the previous one."""
    steps = np.arange(24 * GROWTH_STEPS) + np.arange(NUM_PARTITIONS)[:, None] / NUM_PARTITIONS
    return (FIRST_LINES * np.exp2(steps / GROWTH_STEPS)).astype(np.int64)


SIZES = _sizes()


def _lines_for(counts_P: I64) -> I64:
    """[256] number of home lines of partitions with these numbers of keys; depends on nothing else."""
    lines_P = _least_size(counts_P / (5 * MAX_LOAD))
    return np.where(
        lines_P < MIN_LINES_OF_6, lines_P, _least_size(np.maximum(counts_P / (6 * MAX_LOAD), MIN_LINES_OF_6))
    )


def _least_size(needed_P: NDArray[np.float64]) -> I64:
    lines_P = np.empty(NUM_PARTITIONS, np.int64)
    least_sizes(needed_P, SIZES, lines_P)
    return lines_P


def _bytes_of(lines_P: I64) -> int:
    return int((lines_P + SPARE_LINES).sum()) * LINE_BYTES
