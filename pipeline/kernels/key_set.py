"""A set of keys, and replacement of the keys that are, or are not, in it."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.records import RESERVED, U64


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
