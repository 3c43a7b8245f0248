"""Area under the ROC curve of examples that are sorted by score.

Examples are added one by one, in order, so splitting them into several calls changes no bit of the sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu
from pipeline.kernels.room import need_cpu
from pipeline.records import F32, U64

F64 = NDArray[np.float64]

NEGATIVE, POSITIVE, NEGATIVE_BELOW, POSITIVE_BELOW, TWICE = range(5)
"""Positions in `sums`: weight of each class so far; the same without the open tie; twice the area without the open
tie."""
NUM_SUMS = 5


@cpu
def end_tie(sums: F64) -> None:
    """Add the open tie to the area. It must also be called once after the last example."""
    # A positive ranks above each negative below its tie; each negative in its tie counts half.
    sums[TWICE] += (sums[POSITIVE] - sums[POSITIVE_BELOW]) * (sums[NEGATIVE] + sums[NEGATIVE_BELOW])
    sums[NEGATIVE_BELOW], sums[POSITIVE_BELOW] = sums[NEGATIVE], sums[POSITIVE]


@cpu
def add_sorted(scores_N: U64, positive_N: NDArray[np.bool_], weights_N: F32, last: U64, sums: F64) -> None:
    """Add the next examples, whose scores must not be lower than earlier ones. `sums` [NUM_SUMS] must be zero before
    the first call. `last` [1]: score of the last example."""
    need_cpu(min(len(positive_N), len(weights_N)), len(scores_N))
    for i in range(len(scores_N)):
        if scores_N[i] != last[0]:
            end_tie(sums)
            last[0] = scores_N[i]
        sums[POSITIVE if positive_N[i] else NEGATIVE] += weights_N[i]
