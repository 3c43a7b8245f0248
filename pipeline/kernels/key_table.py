"""Tables of keys: the unique keys of arrays, in order of first appearance, with the same result for any number of
threads.

And sets of keys, and replacement of the keys that are, or are not, in one; key filters with one bit per hash value,
which pass all keys that were inserted, and few others (Bloom 1970, with one hash); and the latest occurrence of each
key in a sequence of occurrences that are numbered in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.kernels import cpu, need_cpu, need_index
from pipeline.kernels.dedup import RUN, refill_table, renumber, unique_keys
from pipeline.kernels.hashing import mix
from pipeline.kernels.hint import AHEAD, prefetch_line
from pipeline.machine.threads import Threads
from pipeline.records import I32, I64, RESERVED, U32, U64

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


def set_size(num_keys: int) -> int:
    """Number of table entries for a set: a power of two, at least twice the number of keys."""
    return 1 << max(1, (2 * num_keys - 1).bit_length())


@cpu
def fill_set(keys_M: U64, table_E: U64) -> None:
    """Fill the table [E] with these keys, using linear probing. E is a power of two above M. Keys are hashes, so the
    low bits of a key select its place."""
    table_E[:] = RESERVED
    mask = np.uint64(table_E.size - 1)
    for key in keys_M:
        at = key & mask
        while table_E[at] != RESERVED and table_E[at] != key:
            at = (at + np.uint64(1)) & mask
        table_E[at] = key


@cpu
def replace_keys(keys_N: U64, table_E: U64, if_in: bool, by: np.uint64) -> None:
    """Replace each key [N] that is in the set or, if `if_in` is false, each key that is not."""
    mask = np.uint64(table_E.size - 1)
    for i in range(keys_N.size):
        at = keys_N[i] & mask
        while table_E[at] != RESERVED and table_E[at] != keys_N[i]:
            at = (at + np.uint64(1)) & mask
        if (table_E[at] != RESERVED) == if_in:
            keys_N[i] = by


BITS_PER_KEY = 16
"""Minimum number of bits per key. At most one in 16 of the other keys passes."""


def num_words(num_keys: int) -> int:
    """Number of uint64 words of a filter for `num_keys` keys: a power of two."""
    return 1 << max(0, (BITS_PER_KEY * num_keys - 1).bit_length() - 6)


@cpu
def put_keys(keys_N: U64, bits_W: U64) -> None:
    """Insert keys into a filter. Its words are initially 0."""
    six, mask = np.uint64(6), np.uint64(bits_W.size - 1)
    for key in keys_N:
        hashed = mix(key)
        bits_W[hashed >> six & mask] |= np.uint64(1) << (hashed & np.uint64(63))


@cpu
def pass_keys(keys_U: U64, at_N: I64, bits_W: U64, passes_N: np.ndarray) -> None:
    """Write to `passes_N` whether the filter passes each of the keys at positions `at_N`."""
    need_cpu(passes_N.size, at_N.size)
    six, mask = np.uint64(6), np.uint64(bits_W.size - 1)
    for n in range(at_N.size):
        need_index(at_N[n], keys_U.size)
        hashed = mix(keys_U[at_N[n]])
        passes_N[n] = bits_W[hashed >> six & mask] >> (hashed & np.uint64(63)) & np.uint64(1)


NO_EARLIER = -1
"""Value that means that a key did not occur before."""
ENTRY_BYTES = 16


def link_keys_reference(keys: Sequence[int], first: int, newest: dict[int, int]) -> list[int]:
    """Return the latest earlier occurrence of each key, and record key n as occurrence `first` + n in `newest`."""
    earlier = [newest.get(key, NO_EARLIER) for key in keys]
    newest.update({key: first + n for n, key in enumerate(keys)})
    return earlier


@cpu
def _prefetch_entry(base: int, keys_U: U64, n: int, mask: np.uint64) -> None:
    """Prefetch the first place of key n, if there is such a key."""
    if n < keys_U.size:
        prefetch_line(base + np.int64(mix(keys_U[n]) & mask) * ENTRY_BYTES)


@cpu
def link_keys(keys_U: U64, first: int, table_E2: I64, earlier_U: I64) -> int:
    """Fill `earlier_U` with the latest earlier occurrence of each key, or NO_EARLIER, and record key n as occurrence
    `first` + n. Returns the number of keys added to the table.

    `table_E2`: pairs of a key, as int64, and its latest occurrence, with open addressing; NO_EARLIER marks an empty
    entry. E is a power of two, and the table must have room for all keys.
    """
    need_cpu(earlier_U.size, keys_U.size)
    mask, base = np.uint64(table_E2.shape[0] - 1), table_E2.ctypes.data
    added = 0
    for n in range(keys_U.size):
        _prefetch_entry(base, keys_U, n + AHEAD, mask)
        key, at = np.int64(keys_U[n]), np.int64(mix(keys_U[n]) & mask)
        while table_E2[at, 1] != NO_EARLIER and table_E2[at, 0] != key:
            at = (at + 1) & np.int64(mask)
        earlier_U[n] = table_E2[at, 1]
        added += table_E2[at, 1] == NO_EARLIER
        table_E2[at, 0] = key
        table_E2[at, 1] = first + n
    return added


@cpu
def enter_live(from_E2: I64, first: int, table_E2: I64) -> int:
    """Copy the keys of a table whose latest occurrence is `first` or later into an empty table. Returns their number.
    Both tables are accessed in about the same order."""
    mask = np.uint64(table_E2.shape[0] - 1)
    entered = 0
    for e in range(from_E2.shape[0]):
        if from_E2[e, 1] >= first:
            at = np.int64(mix(np.uint64(from_E2[e, 0])) & mask)
            while table_E2[at, 1] != NO_EARLIER:
                at = (at + 1) & np.int64(mask)
            table_E2[at, 0], table_E2[at, 1] = from_E2[e, 0], from_E2[e, 1]
            entered += 1
    return entered
