"""Recall and NDCG at K (the number of ranks) within groups of examples, sorted by group, then by score, ascending.

Each group contributes its expected value over random orders of ties (McSherry and Najork, Computing Information
Retrieval Performance Measures Efficiently in the Presence of Tied Scores, ECIR 2008): in a tie of n examples with p
positives, each rank holds a positive with probability p / n. The gain of a positive is 1, and its discount at rank r,
counted from 1, is 1 / log2(r + 1). Examples are added one by one, in order, so splitting them into several calls
changes no bit of the sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu, need_cpu
from pipeline.records import I64, U64

F64 = NDArray[np.float64]

GROUP, SCORE, TIES, POSITIVES = range(4)
"""Positions in `open_4`: group and score of the last example; numbers of ties and of positives in the open group."""
RECALL, NDCG, COUNTED = range(3)
"""Positions in `sums_3`: sums over all closed groups that have a positive, and the number of those groups."""


@cpu
def end_ranks(open_4: U64, ties_K2: I64, sums_3: F64) -> None:
    """Close the open group and add it to the sums. It must also be called once after the last example. `ties_K2`:
    numbers of examples and of positives in each of the group's last K ties; tie t is in row t % K."""
    most, positives = len(ties_K2), int(open_4[POSITIVES])
    tie, rank, found, gain = int(open_4[TIES]) - 1, 0, 0.0, 0.0
    while positives and tie >= 0 and rank < most:
        size = ties_K2[tie % most, 0]
        share = ties_K2[tie % most, 1] / size
        for _ in range(min(size, most - rank)):
            rank += 1
            found += share
            gain += share / np.log2(rank + 1.0)
        tie -= 1
    if positives:
        ideal = 0.0
        for r in range(min(positives, most)):
            ideal += 1.0 / np.log2(r + 2.0)
        sums_3[RECALL] += found / positives
        sums_3[NDCG] += gain / ideal
        sums_3[COUNTED] += 1
    open_4[TIES] = open_4[POSITIVES] = 0


@cpu
def add_ranks(
    groups_N: U64, scores_N: U64, positive_N: NDArray[np.bool_], open_4: U64, ties_K2: I64, sums_3: F64
) -> None:
    """Add the next examples. The last three arrays must be zero before the first call."""
    need_cpu(min(len(scores_N), len(positive_N)), len(groups_N))
    for i in range(len(groups_N)):
        if groups_N[i] != open_4[GROUP]:
            end_ranks(open_4, ties_K2, sums_3)
        if open_4[TIES] == 0 or scores_N[i] != open_4[SCORE]:
            ties_K2[int(open_4[TIES]) % len(ties_K2)] = 0
            open_4[TIES] += np.uint64(1)
        open_4[GROUP], open_4[SCORE] = groups_N[i], scores_N[i]
        at = (int(open_4[TIES]) - 1) % len(ties_K2)
        ties_K2[at, 0] += 1
        if positive_N[i]:
            ties_K2[at, 1] += 1
            open_4[POSITIVES] += np.uint64(1)


def group_ranks_reference(
    groups_N: U64, scores_N: U64, positive_N: NDArray[np.bool_], most: int
) -> tuple[float, float, float]:
    """Return RECALL, NDCG and COUNTED for examples in any order, computed from the definitions."""
    sums = np.zeros(3)
    for group in np.unique(groups_N[positive_N]):
        of = groups_N == group
        scores, is_yes = scores_N[of], positive_N[of].astype(np.float64)
        order = np.argsort(scores)[::-1]
        shares = np.array([is_yes[scores == score].mean() for score in scores[order]])[:most]
        ideal = np.sort(is_yes)[::-1][:most]
        discounts = 1 / np.log2(np.arange(len(shares)) + 2)
        sums += shares.sum() / is_yes.sum(), (shares * discounts).sum() / (ideal * discounts).sum(), 1
    return float(sums[0]), float(sums[1]), float(sums[2])
