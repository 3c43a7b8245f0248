"""HyperLogLog: estimate of the number of distinct keys, from registers of one byte each.

Keys are hashes already. The high bits of a key select its register, which keeps the largest rank: one more than the
number of zeros at the low end of the key's other bits. Registers are thus a function of the set of keys alone, and the
registers of a union are the maxima of both (Flajolet and others, AofA 2007).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu
from pipeline.kernels.room import need_cpu
from pipeline.records import U64

INDEX_BITS = 14
NUM_REGISTERS = 1 << INDEX_BITS
RANK_BITS = 64 - INDEX_BITS
"""Number of key bits that determine the rank; a key whose bits are all 0 there has a rank of one more than this."""
STANDARD_ERROR = 1.04 / math.sqrt(NUM_REGISTERS)
"""Relative standard error of an estimate: 0.8 %."""


@cpu
def add_keys(keys_N: U64, registers: NDArray[np.uint8]) -> None:
    """Raise the registers [NUM_REGISTERS] (zeros at first) to the ranks of these keys."""
    need_cpu(registers.size, NUM_REGISTERS)
    end = np.uint64(1) << np.uint64(RANK_BITS)
    for i in range(len(keys_N)):
        # The additional high bit ends the search.
        rest = keys_N[i] | end
        rank = 1
        while not rest & np.uint64(1):
            rest >>= np.uint64(1)
            rank += 1
        at = keys_N[i] >> np.uint64(RANK_BITS)
        registers[at] = max(registers[at], rank)


def add_keys_reference(keys_N: U64, registers: NDArray[np.uint8]) -> None:
    """`add_keys`, one key at a time, in Python's own integers."""
    for key in keys_N.tolist():
        digits = f"{key % 2**RANK_BITS:0{RANK_BITS}b}"
        rank = 1 + RANK_BITS - len(digits.rstrip("0"))
        at = key >> RANK_BITS
        registers[at] = max(int(registers[at]), rank)


def estimate(registers: NDArray[np.uint8]) -> float:
    """Estimate the number of distinct keys added, to 0.8 % (one standard error) at any size, without tables.

    This is the improved raw estimator of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017,
    arXiv:1702.01284), Algorithm 6, which corrects for registers that are 0 or full in closed form.
    """
    counts = np.bincount(registers, minlength=RANK_BITS + 2).tolist()
    z = NUM_REGISTERS * _tau(1 - counts[RANK_BITS + 1] / NUM_REGISTERS)
    for rank in range(RANK_BITS, 0, -1):
        z = (z + counts[rank]) / 2
    z += NUM_REGISTERS * _sigma(counts[0] / NUM_REGISTERS)
    return NUM_REGISTERS**2 / (2 * math.log(2) * z)


def _sigma(x: float) -> float:
    """x + sum of x^(2^k) 2^(k-1) over k >= 1, where x is the share of registers that are 0."""
    if x == 1:
        return math.inf
    total, power, factor = x, x, 1.0
    while True:
        power *= power
        before, total = total, total + power * factor
        factor *= 2
        if total == before:
            return total


def _tau(x: float) -> float:
    """(1 - x - sum of (1 - x^(2^-k))^2 2^-k over k >= 1) / 3, where x is the share of registers that are not full."""
    if x in (0, 1):
        return 0.0
    total, root, factor = 1 - x, x, 1.0
    while True:
        root, factor = math.sqrt(root), factor / 2
        before, total = total, total - (1 - root) ** 2 * factor
        if total == before:
            return total / 3
