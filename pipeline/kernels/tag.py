"""Tag in a row's last word: a checksum that detects rows that were damaged, torn, or never written.

It is a constant plus the sum of the other words times fixed odd numbers, modulo 2^32. Multiplying by an odd factor
loses no bits, so every single-bit flip is detected. Each word has a different factor, so swapped words are detected. It
runs at 11 GB/s or more on one thread because a sum of products vectorizes; a bytewise CRC does not.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hashing import mix, mix_reference
from pipeline.records import U32

CONSTANT = 0x9E3779B9
"""Start of the sum, so that the tag of a row of zeros is not zero."""
GOLDEN_RATIO = 0x9E3779B97F4A7C15


def tag_reference(words: list[int]) -> int:
    """Tag of these words. The last word, which is the place of the tag, is ignored."""
    factors = [mix_reference((w + 1) * GOLDEN_RATIO % 2**64) % 2**32 | 1 for w in range(len(words) - 1)]
    return (CONSTANT + sum(word * odd for word, odd in zip(words, factors, strict=False))) % 2**32


@cpu
def tag_factors(num_words: int) -> U32:
    """[num_words - 1] odd factor of each word before the tag."""
    odd_W = np.empty(num_words - 1, np.uint32)
    for w in range(odd_W.size):
        odd_W[w] = np.uint32(mix(np.uint64(w + 1) * np.uint64(GOLDEN_RATIO)) | np.uint64(1))
    return odd_W


@cpu
def tag_of(rows_UW: U32, u: int, odd_W: U32) -> np.uint32:
    """Tag that row `u` should have. All arithmetic is in 32 bits; with 64 the loop would not vectorize."""
    tag = np.uint32(CONSTANT)
    for w in range(odd_W.size):
        tag = np.uint32(tag + np.uint32(rows_UW[u, w] * odd_W[w]))
    return tag


@cpu
def set_tags(rows_UW: U32) -> None:
    """Write each row's tag into its last word."""
    odd_W = tag_factors(rows_UW.shape[1])
    for u in range(rows_UW.shape[0]):
        rows_UW[u, odd_W.size] = tag_of(rows_UW, u, odd_W)


@cpu
def first_wrong_tag(rows_UW: U32) -> int:
    """Index of the first row whose last word is not its tag, or -1."""
    odd_W = tag_factors(rows_UW.shape[1])
    for u in range(rows_UW.shape[0]):
        if rows_UW[u, odd_W.size] != tag_of(rows_UW, u, odd_W):
            return u
    return -1
