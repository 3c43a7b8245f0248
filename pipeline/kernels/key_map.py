"""Hash tables of the key map's partitions, with open addressing: [C, 2] uint64, key and place in one cache line."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_line
from pipeline.records import I32, I64, RESERVED, U64

NUM_PARTITIONS = 64
PARTITION_BITS = np.uint64(6)
UNKNOWN = np.int64(-1)


@cpu
def partition_keys(keys_U: U64, members_U: I32, starts: I64) -> None:
    """Sort positions by the low bits of their key, with a stable counting sort; `starts` [65] bounds each partition."""
    low = np.uint64(NUM_PARTITIONS - 1)
    starts[:] = 0
    for u in range(keys_U.size):
        starts[np.int64(keys_U[u] & low) + 1] += 1
    for p in range(NUM_PARTITIONS):
        starts[p + 1] += starts[p]
    cursor = starts[:-1].copy()
    for u in range(keys_U.size):
        p = int(keys_U[u] & low)
        members_U[cursor[p]] = u
        cursor[p] += 1


@cpu
def _entry_of(table_C2: U64, key: np.uint64, mask: np.uint64) -> np.uint64:
    """Position of the key's entry, or of the empty entry that a new key would take."""
    at = (key >> PARTITION_BITS) & mask
    while table_C2[at, 0] != key and table_C2[at, 0] != RESERVED:
        at = (at + np.uint64(1)) & mask
    return at


@cpu
def find_places(table_C2: U64, keys_U: U64, members: I32, places_U: I64) -> None:
    """Write the place of each member's key, `UNKNOWN` if the table does not hold it."""
    mask = np.uint64(table_C2.shape[0] - 1)
    base = table_C2.ctypes.data
    for i in range(members.size):
        if i + AHEAD < members.size:
            prefetch_line(base + np.int64((keys_U[members[i + AHEAD]] >> PARTITION_BITS) & mask) * 16)
        key = keys_U[members[i]]
        at = _entry_of(table_C2, key, mask)
        if table_C2[at, 0] == key:
            places_U[members[i]] = np.int64(table_C2[at, 1])
        else:
            places_U[members[i]] = UNKNOWN


@cpu
def put(table_C2: U64, keys_U: U64, members: I32, places_U: I64) -> None:
    """Set the place of each member's key. A key that the table does not hold is added; there must be room."""
    mask = np.uint64(table_C2.shape[0] - 1)
    base = table_C2.ctypes.data
    for i in range(members.size):
        if i + AHEAD < members.size:
            prefetch_line(base + np.int64((keys_U[members[i + AHEAD]] >> PARTITION_BITS) & mask) * 16)
        key = keys_U[members[i]]
        at = _entry_of(table_C2, key, mask)
        table_C2[at, 0] = key
        table_C2[at, 1] = np.uint64(places_U[members[i]])


@cpu
def move_entries(table_C2: U64, into_C2: U64) -> None:
    """Enter all entries of a table into a larger, empty one."""
    mask = np.uint64(into_C2.shape[0] - 1)
    for entry in range(table_C2.shape[0]):
        key = table_C2[entry, 0]
        if key == RESERVED:
            continue
        at = (key >> PARTITION_BITS) & mask
        while into_C2[at, 0] != RESERVED:
            at = (at + np.uint64(1)) & mask
        into_C2[at, 0] = key
        into_C2[at, 1] = table_C2[entry, 1]
