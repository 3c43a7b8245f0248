"""Copied columns: two that say the same, in all rows or under other names of the values; or one put into the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np

from pipeline.doctor.dependence import Coarse, coarse_flag, counted_rows, dependence
from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import F64, Mask, SeenColumn, SeenRows
from pipeline.records import I32, I64

SAME_ROWS = 0.999
"""Share of the rows from which on two columns are one."""
OTHER_ROWS = 100
"""Rows without its most frequent value that each of two columns must have to be compared."""
ALIKE_COPIES = 6.0
"""Standard deviations of dependence of equality on the number, below which copies are drawn at random."""
FIRST_ROWS, FIRST_SAME = 4096, 0.99
"""Rows that are compared first, and the share of them that must agree, since most pairs of columns differ at once."""
COPIED = 0.005
"""Share of the rows from which on a partial copy is reported."""
OWN = 0.9
"""Least share of copies of the same row, among the rows in which a column has a value of another one's."""
EXPECTED, WITHIN = 10, 3
"""Expected copies from which on a value is judged, and the factor within which its number of copies must be."""
NEAR, NEAR_FROM, FEWER = 0.1, 20.0, 10
"""Numbers from 20 on that differ by a tenth at most are near. Columns that merely count alike are near more often than
equal; among copies a tenth as many rows are near, and those that are by chance."""


def find_copied_columns(seen: SeenRows, coarse: Mapping[str, Coarse]) -> list[Finding]:
    """Compare all pairs of features, on the rows that pairs of columns are counted in."""
    rows = counted_rows(seen)
    return [
        found
        for a, b in combinations(seen.features.values(), 2)
        if _varies(a, rows) and _varies(b, rows)
        for found in _of_pair(seen, a, b, rows, coarse)
    ]


def _varies(column: SeenColumn, rows: I64) -> bool:
    counts_U = np.bincount(column.codes_N[rows])
    return bool(len(rows) - counts_U.max() >= OTHER_ROWS)


def _of_pair(
    seen: SeenRows, a: SeenColumn, b: SeenColumn, rows: I64, coarse: Mapping[str, Coarse]
) -> Iterator[Finding]:
    keys_a, keys_b = a.keys_U[a.codes_N[rows]], b.keys_U[b.codes_N[rows]]
    equal_N = (keys_a == keys_b) & (keys_a != 0)
    known_N = (keys_a != 0) | (keys_b != 0)
    share = float(equal_N.mean())
    if equal_N.sum() >= SAME_ROWS * known_N.sum() and share >= COPIED:
        yield _finding(a, b, f"equal those of {b.name} in {_share(share)} of the rows", "take one out of the workflow")
    elif _same_but_for_names(a, b, rows[:FIRST_ROWS], FIRST_SAME) and _same_but_for_names(a, b, rows, SAME_ROWS):
        said = f"go with those of {b.name} one to one"
        yield _finding(a, b, said, "they carry the same information, so take one out of the workflow")
    elif share >= COPIED and any(_is_copy(one, other, equal_N, rows, coarse) for one, other in ((a, b), (b, a))):
        first = int(rows[np.flatnonzero(equal_N)[0]])
        where = f"such as {seen.place(first)}, where both are {seen.shown(a, int(a.codes_N[first]))}"
        said = (
            f"equal those of {b.name} in {_share(share)} of the rows, {where}, and hardly ever resemble them elsewhere"
        )
        yield _finding(a, b, said, "one was put in the place of the other; correct these rows")


def _share(share: float) -> str:
    return "all" if share == 1 else f"{share:.2%}"


def _finding(a: SeenColumn, b: SeenColumn, said: str, way: str) -> Finding:
    return Finding("copied_column", "fault", (a.name, b.name), f"the values of {a.name} {said}: {way}")


def _same_but_for_names(a: SeenColumn, b: SeenColumn, rows: I64, same: float) -> bool:
    """True if each value of either column that comes twice or more goes with one value of the other."""
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


def _is_copy(a: SeenColumn, b: SeenColumn, equal_N: Mask, rows: I64, coarse: Mapping[str, Coarse]) -> bool:
    """True if equal rows are copies of `a` in `b`, and not of columns that resemble each other anyway."""
    if a.is_number and b.is_number:
        assert a.raw_N is not None
        assert b.raw_N is not None
        return _is_copied_number(a.raw_N[rows], b.raw_N[rows], coarse[a.name].codes_N)
    if a.is_number or b.is_number:
        return False
    has_U = np.isin(b.keys_U, a.keys_U[a.keys_U != 0])
    has_N = has_U[b.codes_N[rows]]
    if equal_N.sum() < OWN * has_N.sum() or 2 * has_N.sum() > len(rows):
        return False
    known_N = a.keys_U[a.codes_N[rows]] != 0
    return _of_all_values(coarse[a.name].codes_N[known_N], equal_N[known_N])


def _of_all_values(codes_N: I32, equal_N: Mask) -> bool:
    """True if about the same share of the rows of nearly each value is equal. A word that two columns have in common,
    such as "unknown", is a single value; and where one column follows from the other, a value is always equal, or
    never."""
    share = float(equal_N.mean())
    # So few groups that in each of them, if they are of one size, twice as many copies are expected as it takes.
    groups = max(2, int(equal_N.sum()) // (2 * EXPECTED))
    sizes_U, hits_U = np.bincount(codes_N % groups), np.bincount(codes_N % groups, equal_N)
    tried_U = sizes_U * share >= EXPECTED
    alike_U = (hits_U * WITHIN >= sizes_U * share) & (hits_U <= WITHIN * sizes_U * share)
    return int(tried_U.sum()) >= 2 and float(alike_U[tried_U].mean()) >= OWN


def _is_copied_number(a_N: F64, b_N: F64, codes_N: I32) -> bool:
    """True if far more rows are equal than near each other, both beyond what chance gives, and if of all large numbers
    the same share is equal."""
    equal, near = _resemble(a_N, b_N)
    equal_by_chance, near_by_chance = _resemble(np.random.default_rng(0).permutation(a_N), b_N)
    copies = equal - equal_by_chance
    near_limit = copies / FEWER + 3 * math.sqrt(near_by_chance)
    if copies < max(COPIED * len(a_N), OTHER_ROWS) or near - near_by_chance > near_limit:
        return False
    large_N = np.abs(a_N) >= NEAR_FROM
    numbers = Coarse(codes_N[large_N], np.empty(0, np.int64), np.empty(0))
    return float(dependence(coarse_flag(a_N[large_N] == b_N[large_N]), numbers).max()) < ALIKE_COPIES


def _resemble(a_N: F64, b_N: F64) -> tuple[int, int]:
    """Number of rows with equal numbers that are not small, and of those with numbers near each other."""
    sizes_N, apart_N = np.abs(b_N), np.abs(a_N - b_N)
    near_N = (apart_N <= NEAR * sizes_N) & (sizes_N >= NEAR_FROM)
    equal = int((near_N & (apart_N == 0)).sum())
    return equal, int(near_N.sum()) - equal
