"""Selection of the slots with the lowest scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.kernels import cpu
from pipeline.records import I32

DIGIT = 16
"""Bits of a digit of a score; a score has four."""
DIGIT_MASK = (1 << DIGIT) - 1


def lowest_reference(major_S: Sequence[int], minor_S: Sequence[int], evictable_S: Sequence[int], num: int) -> list[int]:
    """Return the `num` evictable slots of the lowest (major, minor, slot), in the order of slots."""
    slots = [slot for slot in range(len(major_S)) if evictable_S[slot]]
    return sorted(sorted(slots, key=lambda slot: (major_S[slot], minor_S[slot], slot))[:num])


@cpu
def lowest(major_S: I32, minor_S: I32, evictable_S: np.ndarray, victims_E: I32) -> None:
    """Fill `victims_E` with the evictable slots of the lowest (major, minor, slot), in the order of slots; at least
    that many must be evictable. `major_S`, `minor_S`: 0 or more.

    A radix selection: each pass over the slots counts the scores that share the digits known so far by their next
    digit, and so finds the next digit of the highest score that is taken.
    """
    if victims_E.size == 0:
        return
    counts = np.zeros(DIGIT_MASK + 1, np.int64)
    known, mask, left = np.uint64(0), np.uint64(0), victims_E.size
    for digit in range(4):
        shift = np.uint64(DIGIT * (3 - digit))
        counts[:] = 0
        for slot in range(evictable_S.size):
            if evictable_S[slot]:
                score = np.uint64(major_S[slot]) << np.uint64(32) | np.uint64(minor_S[slot])
                if score & mask == known:
                    counts[np.int64(score >> shift) & DIGIT_MASK] += 1
        value = 0
        while counts[value] < left:
            left -= counts[value]
            value += 1
        known |= np.uint64(value) << shift
        mask |= np.uint64(DIGIT_MASK) << shift
        if counts[value] == left:
            break
    taken = 0
    for slot in range(evictable_S.size):
        if evictable_S[slot]:
            score = (np.uint64(major_S[slot]) << np.uint64(32) | np.uint64(minor_S[slot])) & mask
            if score < known or (score == known and left > 0):
                left -= score == known
                victims_E[taken] = slot
                taken += 1
