"""Tag in a page's first word, a checksum of its other words and its number; and the checks of a page after reading.

As for rows (`tag.py`), the tag is a sum of words times odd factors, so every single-bit flip is detected. The sum
begins with a multiple of the page's number, so a page stored in another page's place is also detected.

Layout of a page: tag | number of rows (uint32 each) | keys of the rows (uint64, ascending) | the rest.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.read_rows import WRONG_TAG
from pipeline.kernels.room import need_cpu
from pipeline.kernels.tag import CONSTANT, tag_factors
from pipeline.records import I32, U32

WRONG_COUNT, WRONG_FENCE = -3, -4
"""Reasons other than WRONG_TAG: a page has no rows or more than fit; its first key does not match its fence."""


def page_tag_reference(words: list[int], number: int) -> int:
    """Tag of a page's words. The first word, which is the place of the tag, is ignored."""
    factors = tag_factors(len(words)).tolist()
    return ((number + 1) * CONSTANT + sum(w * odd for w, odd in zip(words[1:], factors, strict=True))) % 2**32


@cpu
def _tag_of(pages_RW: U32, r: int, number: np.uint32, odd_W: U32) -> np.uint32:
    # Odd multiples of different numbers are different. All arithmetic is in 32 bits, as in `tag.tag_of`.
    tag = np.uint32((number + np.uint32(1)) * np.uint32(CONSTANT))
    for w in range(odd_W.size):
        tag = np.uint32(tag + np.uint32(pages_RW[r, 1 + w] * odd_W[w]))
    return tag


@cpu
def set_page_tags(pages_RW: U32, numbers_R: U32) -> None:
    """Write each page's tag into its first word."""
    need_cpu(numbers_R.size, pages_RW.shape[0])
    odd_W = tag_factors(pages_RW.shape[1])
    for r in range(pages_RW.shape[0]):
        pages_RW[r, 0] = _tag_of(pages_RW, r, numbers_R[r], odd_W)


@cpu
def check_pages(pages_RW: U32, numbers_R: U32, fences_R: U32, max_rows: int, odd_W: U32, reasons_R: I32) -> None:
    """Check each page's tag, its number of rows, and the top 32 bits of its first key; `odd_W` is `tag_factors(W)`.
    Writes the first of WRONG_TAG, WRONG_COUNT and WRONG_FENCE that applies, or 0."""
    need_cpu(min(numbers_R.size, fences_R.size, reasons_R.size), pages_RW.shape[0])
    need_cpu(pages_RW.shape[1], max(4, odd_W.size + 1))
    for r in range(pages_RW.shape[0]):
        if pages_RW[r, 0] != _tag_of(pages_RW, r, numbers_R[r], odd_W):
            reasons_R[r] = WRONG_TAG
        elif pages_RW[r, 1] < 1 or pages_RW[r, 1] > max_rows:
            reasons_R[r] = WRONG_COUNT
        else:
            # The high half of a little-endian key is its second word.
            reasons_R[r] = WRONG_FENCE if pages_RW[r, 3] != fences_R[r] else 0
