"""Unique keys of arrays, in order of first appearance. The result is the same for any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.kernels.dedup import RUN, refill_table, renumber, unique_keys
from pipeline.machine.threads import Threads
from pipeline.records import I32, U32, U64

ENTRIES_PER_KEY, ENTRIES_PER_KEY_OF_A_BLOCK = 16, 8
"""Minimum number of table entries (4 bytes each) per key. Looking up a key that is not at its first place costs several
times as much. Measured for 3.4 M values with 0.3 M keys, one thread: 12.1 ms with 2, 9.2 with 4, 8.2 with 8, 7.4 with
16. A block has more keys than a batch and looks each up only a few times, so its table has fewer entries per key."""
INITIAL_KEYS = 4 * RUN


class KeyTable:
    """Table that numbers keys. It is reused for one array after another and grows as needed. Clearing it is free."""

    def __init__(self, entries_per_key: int = ENTRIES_PER_KEY) -> None:
        self._num_keys = 0
        self._base = 1
        self._keys_U: U64 = np.empty(INITIAL_KEYS + 1, np.uint64)
        self._table: U32 = np.zeros(entries_per_key * INITIAL_KEYS, np.uint32)
        self._numbers_P: I32 = np.empty(0, np.int32)

    @property
    def keys_U(self) -> U64:
        """Keys added so far, in order of first appearance; valid until the next call."""
        return self._keys_U[: self._num_keys]

    def clear(self) -> None:
        """Forget all keys: entries below the new base count as empty."""
        self._base += self._num_keys
        self._num_keys = 0
        if self._base + len(self._keys_U) > np.iinfo(np.uint32).max:
            self._table[:] = 0
            self._base = 1

    def add(self, keys_V: U64, inverse_V: I32) -> None:
        """Add and number the keys; `inverse_V` may overlap the first half of `keys_V`'s bytes."""
        done = 0
        while True:
            done, self._num_keys = unique_keys(
                keys_V, done, self._table, self._base, self._keys_U, self._num_keys, inverse_V
            )
            if done == len(keys_V):
                return
            self._grow()

    def add_from(self, other: KeyTable) -> I32:
        """Add another table's keys. Returns their numbers in this table, valid until the other table's next call."""
        if len(other._numbers_P) < other._num_keys:
            other._numbers_P = np.empty(len(other._keys_U), np.int32)
        numbers_P = other._numbers_P[: other._num_keys]
        self.add(other.keys_U, numbers_P)
        return numbers_P

    def _grow(self) -> None:
        self._base = 1
        self._table = np.zeros(2 * len(self._table), np.uint32)
        self._keys_U = np.concatenate([self._keys_U, np.empty(len(self._keys_U) - 1, np.uint64)])
        refill_table(self._keys_U, self._num_keys, self._table, self._base)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of an array of keys, and the arrays for their numbers."""

    keys_V: U64
    own_V: I32
    """Output: key numbers within this part. May overlap the first half of `keys_V`'s bytes."""
    inverse_V: I32
    """Output: key numbers over all parts. May be the same array as `own_V`."""


def number_parts(parts: Sequence[KeyRange], tables: Sequence[KeyTable], threads: Threads) -> KeyTable:
    """Number the keys of all parts, first within each part. Returns the table with the keys of all parts.

    The keys of the first part keep their numbers; those of the other parts follow part by part, which gives the order
    of first appearance. Parts are renumbered in order because a part's `inverse_V` may overlap the `own_V` of an
    earlier part.
    """

    def number(begin: int, end: int) -> None:
        for part, table in zip(parts[begin:end], tables[begin:end], strict=True):
            table.clear()
            table.add(part.keys_V, part.own_V)

    threads.split(len(parts), number, minimum=1)
    for part, table in zip(parts[1:], tables[1:], strict=False):
        _renumber(part, tables[0].add_from(table), threads)
    return tables[0]


def _renumber(part: KeyRange, numbers_P: I32, threads: Threads) -> None:
    threads.split(len(part.keys_V), lambda a, b: renumber(part.own_V[a:b], numbers_P, part.inverse_V[a:b]))
