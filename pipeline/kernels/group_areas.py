"""Areas under the ROC curves of groups of examples. Examples must be sorted by group, then by score.

Examples are added one by one, in order, so splitting them into several calls changes no bit of the sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu, need_cpu
from pipeline.records import F32, U64

F64 = NDArray[np.float64]

TIE_NEGATIVE, TIE_POSITIVE, NEGATIVE, POSITIVE, TWICE, AREA, COUNTED, WEIGHT = range(8)
"""Positions in `sums`. Weights of both classes in the open tie; weights of both classes in the open group without that
tie; twice the open group's area so far. Over all closed groups: sum of area times weight, weight of the groups that
have both classes, weight of all groups."""
NUM_SUMS = 8
GROUP, SCORE = range(2)
"""Positions in `last`: group and score of the last example."""


@cpu
def end_tie(sums: F64) -> None:
    # A positive counts each negative below it, and half of each negative in its tie.
    sums[TWICE] += sums[TIE_POSITIVE] * (2 * sums[NEGATIVE] + sums[TIE_NEGATIVE])
    sums[NEGATIVE] += sums[TIE_NEGATIVE]
    sums[POSITIVE] += sums[TIE_POSITIVE]
    sums[TIE_NEGATIVE] = sums[TIE_POSITIVE] = 0.0


@cpu
def end_group(sums: F64) -> None:
    """Close the open group and add it to the sums. It must also be called once after the last example."""
    end_tie(sums)
    weight = sums[NEGATIVE] + sums[POSITIVE]
    sums[WEIGHT] += weight
    if sums[NEGATIVE] > 0 and sums[POSITIVE] > 0:
        sums[AREA] += weight * min(1.0, sums[TWICE] / (2 * sums[POSITIVE] * sums[NEGATIVE]))
        sums[COUNTED] += weight
    sums[:AREA] = 0.0


@cpu
def add_groups(
    groups_N: U64, scores_N: U64, positive_N: NDArray[np.bool_], weights_N: F32, last: U64, sums: F64
) -> None:
    """Add the next examples. `last` [2] and `sums` [NUM_SUMS] must be zero before the first call."""
    need_cpu(min(len(scores_N), len(positive_N), len(weights_N)), len(groups_N))
    for i in range(len(groups_N)):
        if groups_N[i] != last[GROUP]:
            end_group(sums)
        elif scores_N[i] != last[SCORE]:
            end_tie(sums)
        last[GROUP], last[SCORE] = groups_N[i], scores_N[i]
        sums[TIE_POSITIVE if positive_N[i] else TIE_NEGATIVE] += weights_N[i]


def group_areas_reference(
    groups_N: U64, scores_N: U64, positive_N: NDArray[np.bool_], weights_N: F32
) -> tuple[float, float, float]:
    """Return AREA, COUNTED and WEIGHT for examples in any order, computed pair by pair."""
    area = counted = 0.0
    weights = weights_N.astype(np.float64)
    for group in np.unique(groups_N):
        yes, no = (np.flatnonzero((groups_N == group) & (positive_N == is_yes)) for is_yes in (True, False))
        pairs = weights[yes, None] * weights[None, no]
        won = (scores_N[yes, None] > scores_N[None, no]) + 0.5 * (scores_N[yes, None] == scores_N[None, no])
        if pairs.sum() > 0:
            weight = weights[yes].sum() + weights[no].sum()
            area += weight * (won * pairs).sum() / pairs.sum()
            counted += weight
    return float(area), float(counted), float(weights.sum())
