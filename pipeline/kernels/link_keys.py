"""A table of the newest occurrence of each key, in a sequence of occurrences that are numbered in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.mix import mix
from pipeline.records import I64, U64

NO_EARLIER = -1
"""Number of the occurrence of a key that did not occur before."""


def link_keys_reference(keys: Sequence[int], first: int, newest: dict[int, int]) -> list[int]:
    """Return the newest earlier occurrence of each key, and note key n as occurrence `first` + n in `newest`."""
    earlier = [newest.get(key, NO_EARLIER) for key in keys]
    newest.update({key: first + n for n, key in enumerate(keys)})
    return earlier


@cpu
def link_keys(keys_U: U64, first: int, table_keys_E: U64, table_E: I64, earlier_U: I64) -> int:
    """Fill `earlier_U` with the newest earlier occurrence of each key, or NO_EARLIER, and enter key n as occurrence
    `first` + n. Returns the number of keys that are new in the table.

    `table_keys_E`, `table_E`: keys and their newest occurrences by open addressing; NO_EARLIER is an empty entry. Their
    size is a power of two, and the table must have room for all keys.
    """
    mask = np.uint64(table_E.size - 1)
    added = 0
    for n in range(keys_U.size):
        at = np.int64(mix(keys_U[n]) & mask)
        while table_E[at] != NO_EARLIER and table_keys_E[at] != keys_U[n]:
            at = (at + 1) & np.int64(mask)
        earlier_U[n] = table_E[at]
        if table_E[at] == NO_EARLIER:
            table_keys_E[at] = keys_U[n]
            added += 1
        table_E[at] = first + n
    return added


@cpu
def enter_keys(keys_N: U64, occurrences_N: I64, table_keys_E: U64, table_E: I64) -> None:
    """Enter different keys, which the table does not have, with their newest occurrences."""
    mask = np.uint64(table_E.size - 1)
    for n in range(keys_N.size):
        at = np.int64(mix(keys_N[n]) & mask)
        while table_E[at] != NO_EARLIER:
            at = (at + 1) & np.int64(mask)
        table_keys_E[at] = keys_N[n]
        table_E[at] = occurrences_N[n]
