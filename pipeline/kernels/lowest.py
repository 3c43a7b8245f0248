"""Multithreaded selection of the slots with the lowest scores. Each thread processes parts of PART slots.

It is a radix selection: the highest selected score is found digit by digit, from the highest bit in which any two
scores differ. For each digit, the threads count the slots of each part. The counts also give the position of each
part's victims among all victims.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.kernels import cpu, need, need_cpu
from pipeline.machine.threads import Threads
from pipeline.records import I32, I64, U64

DIGIT = 11
"""Number of bits per digit of a score, few enough that the counts of a part stay in a fast cache."""
PART = 1 << 15
"""Number of slots that are counted together."""


def lowest_reference(major_S: Sequence[int], minor_S: Sequence[int], evictable_S: Sequence[int], num: int) -> list[int]:
    """Return the `num` evictable slots with the lowest (major, minor, slot), in slot order."""
    slots = [slot for slot in range(len(major_S)) if evictable_S[slot]]
    return sorted(sorted(slots, key=lambda slot: (major_S[slot], minor_S[slot], slot))[:num])


def lowest(major_S: I32, minor_S: I32, evictable_S: np.ndarray, num: int, threads: Threads) -> I32:
    """[num] evictable slots with the lowest (major, minor, slot), in slot order. At least `num` slots must be
    evictable. `major_S`, `minor_S`: 0 or more. The result does not depend on the number of threads."""
    need(min(len(major_S), len(minor_S)), len(evictable_S))
    victims_E, slots, parts = np.empty(num, np.int32), (major_S, minor_S, evictable_S), -(-len(evictable_S) // PART)
    if not num:
        return victims_E
    bits_P2, counts_PD = np.empty((parts, 2), np.uint64), np.empty((parts, (1 << DIGIT) + 1), np.int32)
    lower_P, equal_P = np.zeros(parts, np.int64), np.empty(parts, np.int64)
    threads.split(parts, lambda a, b: _collect_bits(*slots, a, b, bits_P2), 1)
    some, every = np.bitwise_or.reduce(bits_P2[:, 0]), np.bitwise_and.reduce(bits_P2[:, 1])
    differ, known, prefix, left, kept = int(some & ~every), 0, 0, num, -1
    while kept < 0 or (differ & ~known and kept != left):
        shift = max(0, (differ & ~known).bit_length() - DIGIT)
        args = np.uint64(known), np.uint64(prefix), shift
        threads.split(parts, lambda a, b: _count_digits(*slots, a, b, *args, counts_PD), 1)  # noqa: B023
        digit, left, kept = _pick_digit(counts_PD, left, lower_P, equal_P)
        known = (1 << 64) - (1 << shift)
        prefix |= int(every) & known | digit << shift
    ties_P = np.clip(left - (np.cumsum(equal_P) - equal_P), 0, equal_P)
    ends_P, bound = np.cumsum(lower_P + ties_P), (np.uint64(known), np.uint64(prefix))
    threads.split(parts, lambda a, b: _take_lowest(*slots, a, b, *bound, ties_P, ends_P, victims_E), 1)
    return victims_E


@cpu
def _score(major_S: I32, minor_S: I32, slot: int) -> np.uint64:
    return np.uint64(major_S[slot]) << np.uint64(32) | np.uint64(minor_S[slot])


@cpu
def _collect_bits(major_S: I32, minor_S: I32, evictable_S: np.ndarray, begin: int, end: int, bits_P2: U64) -> None:
    """Write the bits that are set in any score, and in all scores, of each part from `begin` to `end`."""
    none = np.uint64(0)
    for p in range(begin, end):
        some, every = none, ~none
        for slot in range(p * PART, min((p + 1) * PART, evictable_S.size)):
            score, mask = _score(major_S, minor_S, slot), none - np.uint64(evictable_S[slot] != 0)
            some |= score & mask
            every &= score | ~mask
        bits_P2[p, 0], bits_P2[p, 1] = some, every


@cpu
def _count_digits(
    major_S: I32, minor_S: I32, evictable_S: np.ndarray, begin: int, end: int, known: np.uint64, prefix: np.uint64,
    shift: int, counts_PD: I32,
) -> None:  # fmt: skip
    """Count the slots of each part by the digit of the score at `shift`, for scores whose bits `known` equal `prefix`.
    All other slots count under one extra digit."""
    mask, other = np.uint64((1 << DIGIT) - 1), np.int64(1 << DIGIT)
    for p in range(begin, end):
        counts_D = counts_PD[p]
        counts_D[:] = 0
        for slot in range(p * PART, min((p + 1) * PART, evictable_S.size)):
            score = _score(major_S, minor_S, slot)
            counts = (evictable_S[slot] != 0) & (score & known == prefix)
            counts_D[np.int64(score >> np.uint64(shift) & mask) if counts else other] += 1


@cpu
def _pick_digit(counts_PD: I32, num: int, lower_P: I64, equal_P: I64) -> tuple[int, int, int]:
    """Pick the digit of the highest of the `num` lowest scores. Returns the digit, the number of selected scores that
    have it, and the number of all scores that have it. Adds each part's number of scores with lower digits to
    `lower_P`, and writes its number of scores with this digit to `equal_P`."""
    counts_D = np.zeros(1 << DIGIT, np.int64)
    for p in range(counts_PD.shape[0]):
        for d in range(counts_D.size):
            counts_D[d] += counts_PD[p, d]
    digit = 0
    while counts_D[digit] < num:
        num -= counts_D[digit]
        digit += 1
        need_cpu(counts_D.size, digit + 1)
    for p in range(counts_PD.shape[0]):
        for d in range(digit):
            lower_P[p] += counts_PD[p, d]
        equal_P[p] = counts_PD[p, digit]
    return digit, num, counts_D[digit]


@cpu
def _take_lowest(
    major_S: I32, minor_S: I32, evictable_S: np.ndarray, begin: int, end: int, known: np.uint64, prefix: np.uint64,
    ties_P: I64, ends_P: I64, victims_E: I32,
) -> None:  # fmt: skip
    """Write the victims of each part: the slots whose scores, in the bits `known`, are below `prefix`, and the first
    `ties_P` of those equal to it. `ends_P`: where the victims of each part end in `victims_E`."""
    taken_V = np.empty(PART + 1, np.int32)
    for p in range(begin, end):
        taken, ties = 0, ties_P[p]
        for slot in range(p * PART, min((p + 1) * PART, evictable_S.size)):
            score = _score(major_S, minor_S, slot) & known
            tie = (score == prefix) & (evictable_S[slot] != 0) & (ties > 0)
            # Branch-free, since a branch would be unpredictable.
            taken_V[taken] = slot
            taken += tie | ((score < prefix) & (evictable_S[slot] != 0))
            ties -= tie
        victims_E[ends_P[p] - taken : ends_P[p]] = taken_V[:taken]


@cpu
def foresee(next_S: I32, count_S: I32, unknown: np.int32, most: np.int32, value_S: I32) -> None:
    """Write a score for the next use of each slot: the lower, the later. Slots whose next use is `unknown` are ordered
    by number of uses, with scores below `most`."""
    need_cpu(min(next_S.size, count_S.size), value_S.size)
    for slot in range(value_S.size):
        value = max(np.int32(unknown - next_S[slot]), most)
        value_S[slot] = min(count_S[slot], most - np.int32(1)) if next_S[slot] == unknown else value
