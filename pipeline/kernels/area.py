"""Area under the ROC curve of examples that are sorted by score, and bins of scores: scores that agree in their upper
bits share a bin.

Examples are added one by one, in order, so splitting them into several calls changes no bit of the sums.

A list of bins has the lowest score that each bin may have, ascending, and the weights of positives and of negatives in
each. Scores are integers that sort like them. Examples are bins of one score each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu, need_cpu
from pipeline.records import F32, U32, U64

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


@cpu
def merge_bins(
    scores_A: U32, positives_A: F64, negatives_A: F64, scores_B: U32, positives_B: F64, negatives_B: F64, shift: int,
    scores_C: U32, positives_C: F64, negatives_C: F64,
) -> int:  # fmt: skip
    """Merge two lists of bins into one, whose bins combine scores that differ only in their lower `shift` bits. Weights
    are added in ascending order of scores. Returns the number of bins, or -1 if there are more than fit in the last
    three arrays."""
    need_cpu(min(len(positives_A), len(negatives_A)), len(scores_A))
    need_cpu(min(len(positives_B), len(negatives_B)), len(scores_B))
    need_cpu(min(len(positives_C), len(negatives_C)), len(scores_C))
    a = b = num = 0
    while a < len(scores_A) or b < len(scores_B):
        if b == len(scores_B) or (a < len(scores_A) and scores_A[a] <= scores_B[b]):
            score, positives, negatives = scores_A[a], positives_A[a], negatives_A[a]
            a += 1
        else:
            score, positives, negatives = scores_B[b], positives_B[b], negatives_B[b]
            b += 1
        lowest = np.uint32((np.int64(score) >> shift) << shift)
        if num == 0 or scores_C[num - 1] != lowest:
            if num == len(scores_C):
                return -1
            scores_C[num] = lowest
            positives_C[num] = negatives_C[num] = 0.0
            num += 1
        positives_C[num - 1] += positives
        negatives_C[num - 1] += negatives
    return num
