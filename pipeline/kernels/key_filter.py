"""Key filter with one bit per hash value. It passes all keys that were inserted, and few others (Bloom 1970, with one
hash)."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.mix import mix
from pipeline.kernels.room import need_cpu, need_index
from pipeline.records import I64, U64

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
