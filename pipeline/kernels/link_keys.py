"""Table of the latest occurrence of each key, in a sequence of occurrences that are numbered in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_line
from pipeline.kernels.mix import mix
from pipeline.kernels.room import need_cpu
from pipeline.records import I64, U64

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
