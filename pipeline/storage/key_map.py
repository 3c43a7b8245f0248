"""Key map: key -> place. It belongs to `plan` alone."""

from __future__ import annotations

import math

import numpy as np

from pipeline.kernels.key_map import NUM_PARTITIONS, find_places, move_entries, partition_keys, put
from pipeline.records import I32, I64, RESERVED, U64

DEVICE, HOST, DISK = 0, 1, 2
TIER_SHIFT = 48
ENTRY_BYTES = 16
MAX_LOAD = 0.7
MIN_BYTES = int(ENTRY_BYTES / MAX_LOAD)
"""Minimum bytes of the map per key."""
FIRST_ENTRIES = 256
"""Initial number of entries of a partition."""


def place(tier: int, at: I32 | I64) -> I64:
    """Places of the rows numbered `at` in a tier. Places are never negative: `KeyMap.find` gives -1 for an unknown
    key."""
    return at.astype(np.int64) | np.int64(tier << TIER_SHIFT)


def tier_of(places_U: I64) -> I64:
    """Tier of each place: `DEVICE`, `HOST` or `DISK`; -1 for an unknown key."""
    return places_U >> TIER_SHIFT


def row_of(places_U: I64) -> I64:
    """Slot or log position of each place within its tier."""
    return places_U & np.int64((1 << TIER_SHIFT) - 1)


class KeyMap:
    """Hash table with open addressing in 64 partitions. The low bits of a key select its partition; a partition that
    is 70 % full doubles by itself.

    The map takes 23 to 46 bytes per key, and little more than that while it grows.
    """

    def __init__(self) -> None:
        self._tables = [_empty_table(FIRST_ENTRIES) for _ in range(NUM_PARTITIONS)]
        self._counts = np.zeros(NUM_PARTITIONS, np.int64)

    def __len__(self) -> int:
        return int(self._counts.sum())

    @property
    def num_bytes(self) -> int:
        return sum(table.nbytes for table in self._tables)

    def find(self, keys_U: U64) -> I64:
        """[U] place of each key; -1 for a key that the map does not hold."""
        places_U = np.empty(len(keys_U), np.int64)
        members, starts = _partition(keys_U)
        for p in np.flatnonzero(np.diff(starts)):
            find_places(self._tables[p], keys_U, members[starts[p] : starts[p + 1]], places_U)
        return places_U

    def bytes_with(self, new_keys_U: U64) -> int:
        """Bytes of the map after insertion of these keys, none of which it holds yet."""
        counts = self._counts + np.diff(_partition(new_keys_U)[1])
        sizes = [_entries_for(c, len(t)) for c, t in zip(counts, self._tables, strict=True)]
        return ENTRY_BYTES * sum(sizes)

    def insert(self, keys_U: U64, places_U: I64) -> None:
        """Add keys that the map does not hold yet."""
        members, starts = _partition(keys_U)
        self._counts += np.diff(starts)
        for p in np.flatnonzero(np.diff(starts)):
            entries = _entries_for(self._counts[p], len(self._tables[p]))
            if entries > len(self._tables[p]):
                larger = _empty_table(entries)
                move_entries(self._tables[p], larger)
                self._tables[p] = larger
            put(self._tables[p], keys_U, members[starts[p] : starts[p + 1]], places_U)

    def move(self, keys_U: U64, places_U: I64) -> None:
        """Change the places of keys that the map holds."""
        members, starts = _partition(keys_U)
        for p in np.flatnonzero(np.diff(starts)):
            put(self._tables[p], keys_U, members[starts[p] : starts[p + 1]], places_U)


def bytes_for(num_keys: int) -> int:
    """Bytes of a map of `num_keys` keys, spread evenly over the partitions."""
    return NUM_PARTITIONS * ENTRY_BYTES * _entries_for(-(-num_keys // NUM_PARTITIONS), FIRST_ENTRIES)


def most_bytes_for(num_keys: int) -> int:
    """Bytes that a map of `num_keys` keys hardly ever exceeds: with five standard deviations more in each partition."""
    return bytes_for(num_keys + int(5 * math.sqrt(NUM_PARTITIONS * num_keys)))


def _partition(keys_U: U64) -> tuple[I32, I64]:
    members, starts = np.empty(len(keys_U), np.int32), np.empty(NUM_PARTITIONS + 1, np.int64)
    partition_keys(keys_U, members, starts)
    return members, starts


def _entries_for(count: int, entries: int) -> int:
    while count > MAX_LOAD * entries:
        entries *= 2
    return entries


def _empty_table(entries: int) -> U64:
    return np.full((entries, 2), RESERVED, np.uint64)
