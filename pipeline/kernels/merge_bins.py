"""Weights of positives and of negatives in bins of scores: scores that agree in their upper bits share a bin.

A list of bins has the lowest score that each bin may have, ascending, and the two weights of each. Scores are integers
that sort like them. Examples are bins of one score each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu
from pipeline.kernels.room import need_cpu
from pipeline.records import U32

F64 = NDArray[np.float64]


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
