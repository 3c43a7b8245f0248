"""Selection of the slots with the lowest scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.room import need_cpu
from pipeline.records import I32, U64

DIGIT = 12
"""Bits of a digit of a score, few enough that the counts of all digits stay in a fast cache."""


def lowest_reference(major_S: Sequence[int], minor_S: Sequence[int], evictable_S: Sequence[int], num: int) -> list[int]:
    """Return the `num` evictable slots of the lowest (major, minor, slot), in the order of slots."""
    slots = [slot for slot in range(len(major_S)) if evictable_S[slot]]
    return sorted(sorted(slots, key=lambda slot: (major_S[slot], minor_S[slot], slot))[:num])


@cpu
def lowest(major_S: I32, minor_S: I32, evictable_S: np.ndarray, victims_E: I32) -> None:
    """Fill `victims_E` with the evictable slots of the lowest (major, minor, slot), in the order of slots; at least
    that many must be evictable. `major_S`, `minor_S`: 0 or more.

    One pass over all slots gathers the scores of the evictable ones, without a branch. The highest score that is taken
    is found among them digit by digit, and each digit leaves fewer to look at.
    """
    if victims_E.size == 0:
        return
    need_cpu(min(major_S.size, minor_S.size), evictable_S.size)
    scores_E, slots_E = np.empty(evictable_S.size + 1, np.uint64), np.empty(evictable_S.size + 1, np.int32)
    num = 0
    for slot in range(evictable_S.size):
        scores_E[num] = np.uint64(major_S[slot]) << np.uint64(32) | np.uint64(minor_S[slot])
        slots_E[num] = slot
        num += evictable_S[slot] != 0
    need_cpu(num, victims_E.size)
    highest, ties = _highest(scores_E[:num].copy(), victims_E.size)
    taken = 0
    for e in range(num):
        if scores_E[e] < highest or (scores_E[e] == highest and ties > 0):
            ties -= scores_E[e] == highest
            victims_E[taken] = slots_E[e]
            taken += 1


@cpu
def _highest(scores_R: U64, num: int) -> tuple[np.uint64, int]:
    """Find a bound of the `num` lowest scores: the lower ones are all among them. Returns it, and the maximum number of
    equal ones that are. Overwrites `scores_R`.

    A radix selection: the scores that may be it are counted by the highest digit in which any two of them differ.
    """
    counts = np.empty(1 << DIGIT, np.int64)
    mask = np.uint64((1 << DIGIT) - 1)
    while True:
        differ = np.uint64(0)
        for r in range(scores_R.size):
            differ |= scores_R[r] ^ scores_R[0]
        shift = np.uint64(0)
        while differ >> shift > mask:
            shift += np.uint64(1)
        counts[:] = 0
        for r in range(scores_R.size):
            counts[np.int64(scores_R[r] >> shift & mask)] += 1
        digit = 0
        while counts[digit] < num:
            num -= counts[digit]
            digit += 1
        kept = 0
        for r in range(scores_R.size):
            score = scores_R[r]
            scores_R[kept] = score
            kept += (score >> shift & mask) == np.uint64(digit)
        scores_R = scores_R[:kept]
        if shift == 0 or kept == num:
            return scores_R[0] | ((np.uint64(1) << shift) - np.uint64(1)), num
