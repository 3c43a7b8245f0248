"""Sum, modulo 2^128, of the 128-bit hashes of all rows. It does not depend on the order of the rows."""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.mix import mix, mix_reference
from pipeline.kernels.room import need_cpu
from pipeline.records import U32, U64

SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
PRIME = 0x100000001B3


def row_hash_reference(words: list[int]) -> int:
    """128-bit hash of a row's words: two chains of SplitMix64's output function with different starts."""
    mask = (1 << 64) - 1
    high, low = SEEDS
    for word in words:
        high = mix_reference((high * PRIME + word) & mask)
        low = mix_reference((low + word * PRIME) & mask)
    return high << 64 | low


@cpu
def add_row_hashes(rows_UW: U32, num_words: int, total: U64) -> None:
    """Add the hashes of the rows' first `num_words` words to `total` [2], high and low."""
    need_cpu(rows_UW.shape[1], num_words)
    prime = np.uint64(PRIME)
    for u in range(rows_UW.shape[0]):
        high = np.uint64(SEEDS[0])
        low = np.uint64(SEEDS[1])
        for w in range(num_words):
            word = np.uint64(rows_UW[u, w])
            high = mix(high * prime + word)
            low = mix(low + word * prime)
        total[1] += low
        total[0] += high + (np.uint64(1) if total[1] < low else np.uint64(0))
