"""Coarse columns, and how far the counts of their cells differ between two sets of rows.

C cells: frequent values, and groups of the others
"""

from __future__ import annotations

import numpy as np

from pipeline.doctor.measures import surprise
from pipeline.doctor.seen import SeenColumn, SeenRows
from pipeline.records import I32, I64

FREQUENT_VALUES, GROUPS = 31, 32
"""Values that are counted one by one, and groups that all others of a column are put into."""
CELLS = FREQUENT_VALUES + GROUPS
ROWS = 200_000
"""Rows that are counted, drawn at random."""


def counted_rows(seen: SeenRows) -> I64:
    """Rows in which pairs of columns are counted: all, or ROWS of them."""
    rows = np.arange(seen.num_rows)
    return rows if len(rows) <= ROWS else np.sort(np.random.default_rng(0).choice(len(rows), ROWS, replace=False))


def coarse_codes(column: SeenColumn, rows: I64) -> I32:
    """[N] number of the cell of each of these rows: one of the column's frequent values, or a group of the others."""
    counts_U = np.bincount(column.codes_N, minlength=column.num_values)
    tops = np.argsort(-counts_U, kind="stable")[:FREQUENT_VALUES]
    group_U = FREQUENT_VALUES + (column.keys_U >> np.uint64(59)).astype(np.int32)
    if column.raw_N is not None and column.is_number:
        # Groups of numbers of one size, not of one hash, and of as many rows each.
        order_U = np.argsort(column.raw_N[column.firsts_U])
        ends_U = np.cumsum(counts_U[order_U])
        group_U[order_U] = FREQUENT_VALUES + ((ends_U - 1) * GROUPS // ends_U[-1]).astype(np.int32)
    group_U[tops] = np.arange(len(tops))
    codes_N: I32 = group_U[column.codes_N[rows]]
    return codes_N


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
