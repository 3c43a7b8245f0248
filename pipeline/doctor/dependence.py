"""Dependence of a column's frequent values on another column, from counts of pairs.

K frequent values of a column    C frequent values and groups of the others
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.doctor.measures import surprise
from pipeline.doctor.seen import F64, Mask, SeenColumn, SeenRows
from pipeline.records import I32, I64

FREQUENT_VALUES, GROUPS = 31, 32
"""Values that are counted one by one, and groups that all others of a column are put into."""
CELLS = FREQUENT_VALUES + GROUPS
ROWS = 200_000
"""Rows that are counted, drawn at random."""


@dataclass(frozen=True, slots=True)
class Coarse:
    """A column with few values: its frequent ones, and groups of the others."""

    codes_N: I32
    tops: I64
    """Numbers of the frequent values, the most frequent one first."""
    shares_K: F64


def counted_rows(seen: SeenRows) -> I64:
    """Rows in which pairs of columns are counted: all, or ROWS of them."""
    rows = np.arange(seen.num_rows)
    return rows if len(rows) <= ROWS else np.sort(np.random.default_rng(0).choice(len(rows), ROWS, replace=False))


def coarse_columns(seen: SeenRows) -> dict[str, Coarse]:
    """Make all features coarse, for the rows that are counted."""
    rows = counted_rows(seen)
    return {name: _coarse(column, rows) for name, column in seen.features.items()}


def _coarse(column: SeenColumn, rows: I64) -> Coarse:
    counts_U = np.bincount(column.codes_N, minlength=column.num_values)
    tops = np.argsort(-counts_U, kind="stable")[:FREQUENT_VALUES]
    group_U = FREQUENT_VALUES + (column.keys_U >> np.uint64(59)).astype(np.int32)
    if column.raw_N is not None and column.is_number:
        # Groups of numbers of one size, not of one hash, and of as many rows each.
        order_U = np.argsort(column.raw_N[column.firsts_U])
        ends_U = np.cumsum(counts_U[order_U])
        group_U[order_U] = FREQUENT_VALUES + ((ends_U - 1) * GROUPS // ends_U[-1]).astype(np.int32)
    group_U[tops] = np.arange(len(tops))
    return Coarse(group_U[column.codes_N[rows]], tops.astype(np.int64), counts_U[tops] / len(column.codes_N))


def coarse_flag(flag_N: Mask) -> Coarse:
    """A column of the counted rows that is True or False."""
    share = float(flag_N.mean())
    return Coarse(flag_N.astype(np.int32), np.arange(2), np.array([1 - share, share]))


def dependence(column: Coarse, other: Coarse) -> F64:
    """[K] standard deviations by which each frequent value of a column goes with another column more than chance."""
    pairs = counts_of_pairs(column.codes_N, other.codes_N)
    totals_C = pairs.sum(0)
    return np.array([count_difference(pairs[k], totals_C - pairs[k]) for k in range(len(column.tops))])


def counts_of_pairs(first_N: I32, second_N: I32, num_first: int = CELLS) -> I64:
    """[num_first, C] number of rows with each pair of a number of the first array and a coarse code of the second."""
    pairs_N = first_N.astype(np.int64) * CELLS + second_N
    return np.bincount(pairs_N, minlength=num_first * CELLS).reshape(num_first, CELLS)


def count_difference(some_C: I64, others_C: I64) -> float:
    """Standard deviations by which two counts of the same cells differ more than chance (chi-square); 0 if there is
    nothing to compare."""
    num_some, total = int(some_C.sum()), int(some_C.sum() + others_C.sum())
    if not 0 < num_some < total:
        return 0.0
    share = num_some / total
    totals_C = (some_C + others_C).astype(np.float64)
    # Cells that are expected to have less than a row would make the statistic erratic, and are put together.
    large = share * totals_C >= 1
    observed = np.append(some_C[large], some_C[~large].sum())
    expected = share * np.append(totals_C[large], totals_C[~large].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    return surprise(float((np.square(observed - expected) / expected).sum()) / (1 - share), len(expected) - 1)
