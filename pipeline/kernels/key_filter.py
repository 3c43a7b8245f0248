"""A filter of keys: a bit for each hash. It passes all keys that were put into it, and few others (Bloom 1970, with one
hash)."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.mix import mix
from pipeline.kernels.room import need_cpu, need_index
from pipeline.records import I64, U64

BITS_PER_KEY = 16
"""Minimum bits of a filter per key. One in 16 of the other keys passes at most."""


def num_words(num_keys: int) -> int:
    """Number of uint64 words of a filter of so many keys: a power of two."""
    return 1 << max(0, (BITS_PER_KEY * num_keys - 1).bit_length() - 6)


@cpu
def put_keys(keys_N: U64, bits_W: U64) -> None:
    """Put keys into a filter, whose words are 0 at first."""
    six, mask = np.uint64(6), np.uint64(bits_W.size - 1)
    for key in keys_N:
        hashed = mix(key)
        bits_W[hashed >> six & mask] |= np.uint64(1) << (hashed & np.uint64(63))


@cpu
def pass_keys(keys_U: U64, at_N: I64, bits_W: U64, passes_N: np.ndarray) -> None:
    """Write whether the filter passes each of the keys at the positions `at_N`."""
    need_cpu(passes_N.size, at_N.size)
    six, mask = np.uint64(6), np.uint64(bits_W.size - 1)
    for n in range(at_N.size):
        need_index(at_N[n], keys_U.size)
        hashed = mix(keys_U[at_N[n]])
        passes_N[n] = bits_W[hashed >> six & mask] >> (hashed & np.uint64(63)) & np.uint64(1)
