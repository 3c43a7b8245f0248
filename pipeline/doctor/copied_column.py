"""Copied columns: pairs with the same information, either equal values or values renamed one to one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import SeenColumn, SeenRows
from pipeline.records import I64

SAME_ROWS = 0.999
"""Minimum fraction of rows that must agree for two columns to count as copies."""
OTHER_ROWS = 100
"""Minimum number of rows outside its most frequent value for a column to be compared."""
FIRST_ROWS, FIRST_SAME = 4096, 0.99
"""Number of rows compared first, and the fraction of them that must agree: a cheap test, since most pairs of columns
differ quickly."""
KNOWN = 0.005
"""Minimum fraction of rows with equal, non-null values."""


def find_copied_columns(seen: SeenRows) -> list[Finding]:
    """Compare all pairs of features, on the rows used for counting pairs of columns."""
    rows = seen.counted_rows()
    columns = seen.features.values()
    varied = [column for column in columns if len(rows) - np.bincount(column.codes_N[rows]).max() >= OTHER_ROWS]
    return [found for a, b in combinations(varied, 2) for found in _of_pair(a, b, rows)]


def _of_pair(a: SeenColumn, b: SeenColumn, rows: I64) -> Iterator[Finding]:
    keys_a, keys_b = a.keys_U[a.codes_N[rows]], b.keys_U[b.codes_N[rows]]
    equal_N = (keys_a == keys_b) & (keys_a != 0)
    known_N = (keys_a != 0) | (keys_b != 0)
    share = float(equal_N.mean())
    if equal_N.sum() >= SAME_ROWS * known_N.sum() and share >= KNOWN:
        yield _finding(a, b, f"equal those of {b.name} in {_share(share)} of the rows", "take one out of the workflow")
    elif _same_but_for_names(a, b, rows[:FIRST_ROWS], FIRST_SAME) and _same_but_for_names(a, b, rows, SAME_ROWS):
        said = f"go with those of {b.name} one to one"
        yield _finding(a, b, said, "they carry the same information, so take one out of the workflow")


def _share(share: float) -> str:
    return "all" if share == 1 else f"{share:.2%}"


def _finding(a: SeenColumn, b: SeenColumn, said: str, way: str) -> Finding:
    return Finding("copied_column", "fault", (a.name, b.name), f"the values of {a.name} {said}: {way}")


def _same_but_for_names(a: SeenColumn, b: SeenColumn, rows: I64, same: float) -> bool:
    """True if each repeated value of either column corresponds to one value of the other."""
    pairs_N = a.codes_N[rows].astype(np.int64) * b.num_values + b.codes_N[rows]
    pairs_P, counts_P = np.unique(pairs_N, return_counts=True)
    for column, codes_P in ((a, pairs_P // b.num_values), (b, pairs_P % b.num_values)):
        totals_U = np.bincount(codes_P, counts_P, column.num_values)
        most_U = np.zeros(column.num_values)
        np.maximum.at(most_U, codes_P, counts_P)
        again_U = totals_U >= 2
        again = float(totals_U[again_U].sum())
        if again - totals_U.max() < min(OTHER_ROWS, len(rows) // 100) or most_U[again_U].sum() < same * again:
            return False
    return True
