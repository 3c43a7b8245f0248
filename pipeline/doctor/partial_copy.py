"""Partial copies: in some rows, drawn at random, a column follows another one value by value; in all others it has
nothing to do with it.

With the share s of copied rows, the value f(a) that a value a is copied as, and independent values elsewhere, the rows
of a have f(a) with the chance s + (1 - s) * q, where q is the share of f(a) among the rows that are not copied. Columns
that go together for another reason fit badly: s differs from value to value, or the other rows depend on it, too.

K frequent values of a column    C frequent values and groups of the others
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.doctor.dependence import CELLS, Coarse, counts_of_pairs
from pipeline.doctor.measures import surprise
from pipeline.doctor.seen import Mask
from pipeline.records import I64

LEAST_VALUES = 5
"""Values that must be copied one to one. Any two columns of two or three values fit."""
NEARLY_ALL = 0.8
"""Share of the frequent values that must be: a copy spares none, and of two counts a few values may go together."""
CLEAR_ERRORS = 10.0
"""Standard errors of the share of copied rows from which on it is clear."""
FITTING = 6.0
"""Standard deviations of chi-square, below which the columns fit: of five values one copy in 3,000 fits worse by
chance, of 30 one in 100,000."""
LEAST_FREEDOM = 20
"""Cells that must show that the rows without a copy are independent."""


def copied_share(column: Coarse, other: Coarse, half_N: Mask) -> float:
    """Share of the rows in which the other column is a copy, under the same or other names of its values; 0 if the two
    do not fit. `half_N`: the counted rows that tell which value is copied as which; all others tell how often."""
    first, second = (
        counts_of_pairs(column.codes_N[some_N], other.codes_N[some_N], CELLS) for some_N in (half_N, ~half_N)
    )
    values, images = _one_to_one(first[: len(column.tops)], len(other.tops))
    if len(values) < max(LEAST_VALUES, NEARLY_ALL * len(column.tops)):
        return 0.0
    total = float(second.sum())
    rows_K = second[values].sum(1)
    own_K, image_K = rows_K / total, second.sum(0)[images] / total
    hits_K, expected_K = second[values, images], rows_K * image_K
    share = float((hits_K - expected_K).sum() / (rows_K * (1 - own_K)).sum())
    if (hits_K - expected_K).sum() < CLEAR_ERRORS * math.sqrt(expected_K.sum() + 1) or share >= 1:
        return 0.0
    chance_K = np.clip(share * (1 - own_K) + image_K, 1e-9, 1 - 1e-9)
    chi_square = float((np.square(hits_K - rows_K * chance_K) / (rows_K * chance_K * (1 - chance_K))).sum())
    both = first + second
    # Where a value of one column has many of the other one, as a city has users, one direction alone would fit.
    rest_fits = _rest_is_independent(both, values, images) and _rest_is_independent(both.T, images, values)
    return share if rest_fits and surprise(chi_square, len(values) - 1) < FITTING else 0.0


def _one_to_one(pairs: I64, num_others: int) -> tuple[I64, I64]:
    """Values that go with one value of the other column, more than chance gives and more than any other value goes
    with it; and those values. `pairs` [K, C]."""
    totals_C, rows_K = pairs.sum(0), pairs.sum(1)
    expected = np.outer(rows_K, totals_C) / max(1, int(totals_C.sum()))
    errors = ((pairs - expected) / np.sqrt(expected + 1))[:, :num_others]
    if not errors.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    images = errors.argmax(1)
    values = np.flatnonzero((errors.max(1) >= 3) & (errors.argmax(0)[images] == np.arange(len(images))))
    return values, images[values]


def _rest_is_independent(pairs: I64, values: I64, images: I64) -> bool:
    """True if every second value goes with no value but its image, and there are enough rows to tell. `pairs` [C, C]"""
    values, images = values[::2], images[::2]
    others = np.setdiff1d(np.arange(CELLS), images)
    table = pairs[np.ix_(values, others)].astype(np.float64)
    expected = np.outer(table.sum(1), table.sum(0)) / max(1.0, table.sum())
    # Columns in which a cell is expected to have less than a row are put together.
    large_C = expected.min(0) >= 1
    table = np.column_stack((table[:, large_C], table[:, ~large_C].sum(1)))
    expected = np.column_stack((expected[:, large_C], expected[:, ~large_C].sum(1)))
    some = expected > 0
    freedom = (len(values) - 1) * (int(some.any(0).sum()) - 1)
    chi_square = float((np.square(table - expected)[some] / expected[some]).sum())
    return freedom >= LEAST_FREEDOM and surprise(chi_square, freedom) < FITTING
