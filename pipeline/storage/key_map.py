"""Key map: key -> place. It belongs to `plan` alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.hint import LINE_BYTES
from pipeline.kernels.key_map import (
    MAX_GROWTH,
    MIN_LINES_OF_6,
    NUM_PARTITIONS,
    PLACE_BITS,
    SPARE_LINES,
    copy_entries,
    enter,
    find_places,
    move_keys,
    partition_keys,
    stored_bits,
)
from pipeline.machine.memory import aligned_empty
from pipeline.records import I32, I64, U64

DEVICE, HOST, DISK = 0, 1, 2
TIER_SHIFT = PLACE_BITS - 2
MAX_ROWS = 1 << TIER_SHIFT
"""Maximum number of rows of a tier that places can distinguish."""
MAX_LOAD = 0.925
MIN_BYTES = int(LINE_BYTES / 6 / MAX_LOAD)
"""Minimum bytes of the map per key."""
FIRST_LINES = 8
"""Initial number of home lines of a partition."""
GROWTH_STEPS = 10
"""Number of steps in which a partition doubles."""


def place(tier: int, at: I32 | I64) -> I64:
    """Places of the rows numbered `at`, below MAX_ROWS, in a tier. Places are never negative: `KeyMap.find` gives -1
    for an unknown key."""
    return at.astype(np.int64) | np.int64(tier << TIER_SHIFT)


def tier_of(places_U: I64) -> I64:
    """Tier of each place: `DEVICE`, `HOST` or `DISK`; -1 for an unknown key."""
    return places_U >> TIER_SHIFT


def row_of(places_U: I64) -> I64:
    """Slot of each place within its tier; of a place on disk `Chunks.positions_of` gives the log position."""
    return places_U & np.int64(MAX_ROWS - 1)


class _Table:
    """Table of one partition."""

    def __init__(self, num_lines: int) -> None:
        self.num_lines = num_lines
        """Number of home lines."""
        self.slots = _slots_of(num_lines)
        self._stored = stored_bits(self.slots)
        self.words_L8 = aligned_empty((num_lines + SPARE_LINES, 8), np.uint64)
        self.words_L8[:] = 0
        self._halves_L32 = self.words_L8.view(np.uint16)

    @property
    def _form(self) -> tuple[U64, np.ndarray, int, int]:
        return self.words_L8, self._halves_L32, self.slots, self._stored

    def find(self, mixed_N: U64, members_N: I32, places_U: I64) -> None:
        find_places(*self._form, mixed_N, members_N, places_U)

    def move(self, mixed_N: U64, members_N: I32, places_U: I64) -> None:
        move_keys(*self._form, mixed_N, members_N, places_U)

    def enter(self, mixed_N: U64, members_N: I32, places_U: I64) -> None:
        self._check_room(enter(*self._form, mixed_N, members_N, places_U))

    def resized(self, num_lines: int) -> _Table:
        """Return a table of so many home lines with the same entries."""
        table = self
        while table.num_lines != num_lines:
            next_table = _Table(min(num_lines, MAX_GROWTH * table.num_lines))
            next_table._check_room(copy_entries(*table._form, *next_table._form))
            table = next_table
        return table

    def _check_room(self, was_enough: bool) -> None:
        if not was_enough:
            raise ValueError(
                f"more than {SPARE_LINES * self.slots} keys are alike in the bits that choose their place in the key "
                "map, as only keys made for it are; hash their values to other ones"
            )


class KeyMap:
    """Hash table in 256 partitions. A partition that is 92.5 % full grows by 7 % by itself, at other sizes than the
    other partitions, so that few of them grow at a time.

    The map takes 12.0 bytes per key from 7 million keys on, at most 14.9 from 1 million on, and at least 640 KiB.
    """

    def __init__(self) -> None:
        self._tables = [_Table(int(lines)) for lines in SIZES[:, 0]]
        self._counts = np.zeros(NUM_PARTITIONS, np.int64)

    def __len__(self) -> int:
        return int(self._counts.sum())

    @property
    def num_bytes(self) -> int:
        return sum(table.words_L8.nbytes for table in self._tables)

    def find(self, keys_U: U64) -> I64:
        """[U] place of each key; -1 for a key that the map does not hold."""
        places_U = np.empty(len(keys_U), np.int64)
        members, mixed, starts = _partition(keys_U)
        for p in np.flatnonzero(np.diff(starts)):
            part = slice(starts[p], starts[p + 1])
            self._tables[p].find(mixed[part], members[part], places_U)
        return places_U

    def bytes_with(self, new_keys_U: U64) -> int:
        """Bytes of the map after insertion of these keys, none of which it holds yet."""
        counts = self._counts + np.diff(_partition(new_keys_U)[2])
        return _bytes_of(_lines_for(counts))

    def reserve(self, num_keys: int) -> None:
        """Take an empty map to the size of so many keys at once: growing there would copy a key 14 times."""
        assert not len(self)
        lines_P = _lines_for(np.full(NUM_PARTITIONS, num_keys / NUM_PARTITIONS))
        self._tables = [_Table(num_lines) for num_lines in lines_P.tolist()]

    def release(self) -> None:
        """Give back what was reserved for more keys than there are."""
        for p, num_lines in enumerate(_lines_for(self._counts).tolist()):
            self._tables[p] = self._tables[p].resized(num_lines)

    def insert(self, keys_U: U64, places_U: I64) -> None:
        """Add keys that the map does not hold yet."""
        members, mixed, starts = _partition(keys_U)
        self._counts += np.diff(starts)
        lines_P = _lines_for(self._counts)
        for p in np.flatnonzero(np.diff(starts)):
            if lines_P[p] > self._tables[p].num_lines:
                self._tables[p] = self._tables[p].resized(int(lines_P[p]))
            part = slice(starts[p], starts[p + 1])
            self._tables[p].enter(mixed[part], members[part], places_U)

    def move(self, keys_U: U64, places_U: I64) -> None:
        """Change the places of keys that the map holds."""
        members, mixed, starts = _partition(keys_U)
        for p in np.flatnonzero(np.diff(starts)):
            part = slice(starts[p], starts[p + 1])
            self._tables[p].move(mixed[part], members[part], places_U)


def bytes_for(num_keys: int) -> int:
    """Bytes of a map of `num_keys` keys, spread evenly over the partitions."""
    return _bytes_of(_lines_for(np.full(NUM_PARTITIONS, num_keys / NUM_PARTITIONS)))


def most_bytes_for(num_keys: int) -> int:
    """Bytes that a map of `num_keys` keys hardly ever exceeds: with five standard deviations more in each partition."""
    return bytes_for(num_keys + int(5 * math.sqrt(NUM_PARTITIONS * num_keys)))


def _partition(keys_U: U64) -> tuple[I32, U64, I64]:
    members, mixed = np.empty(len(keys_U), np.int32), np.empty(len(keys_U), np.uint64)
    starts = np.empty(NUM_PARTITIONS + 1, np.int64)
    partition_keys(keys_U, members, mixed, starts)
    return members, mixed, starts


def _slots_of(num_lines: int) -> int:
    return 6 if num_lines >= MIN_LINES_OF_6 else 5


def _sizes() -> I64:
    """[256, 240] possible numbers of home lines of each partition, never descending: partition p has the sizes
    FIRST_LINES * 2**((i + p / 256) / 10), rounded down. So each is 7 % above the one before, as far as whole lines
    allow."""
    steps = np.arange(24 * GROWTH_STEPS) + np.arange(NUM_PARTITIONS)[:, None] / NUM_PARTITIONS
    return (FIRST_LINES * np.exp2(steps / GROWTH_STEPS)).astype(np.int64)


SIZES = _sizes()


def _lines_for(counts_P: I64) -> I64:
    """[256] number of home lines of partitions with so many keys, a function of their numbers alone."""
    lines_P = _least_size(counts_P / (5 * MAX_LOAD))
    return np.where(
        lines_P < MIN_LINES_OF_6, lines_P, _least_size(np.maximum(counts_P / (6 * MAX_LOAD), MIN_LINES_OF_6))
    )


def _least_size(lines_P: NDArray[np.float64]) -> I64:
    return SIZES[np.arange(NUM_PARTITIONS), (lines_P[:, None] > SIZES).sum(axis=1)]


def _bytes_of(lines_P: I64) -> int:
    return int((lines_P + SPARE_LINES).sum()) * LINE_BYTES
