"""Measures of a column against the label: area under the ROC curve, and held-out label rates of values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.files.types import is_list, kind_of
from pipeline.init.columns import codes_of
from pipeline.init.values import F8, floats_of
from pipeline.records import F32, I32, Array

Mask = NDArray[np.bool_]

NUM_BINS, MIN_BIN = 100, 100
"""Number of bins of a number column; and the minimum number of rows of the bins at both ends."""
PRIOR_ROWS = 20.0
"""Number of pseudo-rows with the mean rate added to the rows of each value."""


def rank_auc(scores_N: Array, positive_N: Mask) -> float:
    """Area under the ROC curve, ties counted as one half; 0.5 if there is only one class."""
    some, others = scores_N[positive_N], np.sort(scores_N[~positive_N])
    if not len(some) or not len(others):
        return 0.5
    below_N = np.searchsorted(others, some, "left") + np.searchsorted(others, some, "right")
    return float(below_N.mean()) / (2 * len(others))


def auc_error(scores_N: Array, positive_N: Mask) -> float:
    """Standard error of `rank_auc` (DeLong and others, 1988), for rows of both classes."""
    some, others = np.sort(scores_N[positive_N]), np.sort(scores_N[~positive_N])
    variance = 0.0
    for ones, rest in ((some, others), (others, some)):
        below_N = np.searchsorted(rest, ones, "left") + np.searchsorted(rest, ones, "right")
        variance += float(below_N.var()) / (2 * len(rest)) ** 2 / len(ones)
    return float(variance**0.5)


def held_out_rates(codes_N: I32, labels_N: F32, half_N: Mask) -> F8:
    """[N] smoothed label rate of each row's value, computed on the other half of the rows."""
    num_values = int(codes_N.max(initial=-1)) + 1
    rates_N = np.empty(len(codes_N))
    for counted_N in (half_N, ~half_N):
        mean = float(labels_N[counted_N].mean()) if counted_N.any() else 0.0
        counts_U = np.bincount(codes_N[counted_N], minlength=num_values)
        sums_U = np.bincount(codes_N[counted_N], labels_N[counted_N], num_values)
        rates_U = (sums_U + PRIOR_ROWS * mean) / (counts_U + PRIOR_ROWS)
        rates_N[~counted_N] = rates_U[codes_N[~counted_N]]
    return rates_N


def codings(values: pa.ChunkedArray, is_number: bool) -> Iterator[I32]:
    """Yield [N] codes of the rows, with a separate one for null: bins of numbers and of lengths of lists; else values,
    and if they are many, also bins of their order."""
    if is_list(values.type):
        values = pc.list_value_length(values)
    elif not is_number:
        yield codes_of(values)
        different = pc.unique(values.drop_null())
        if len(different) <= NUM_BINS:
            return
        values = pc.index_in(values, different.take(pc.array_sort_indices(different)))
    floats_N = floats_of(values)
    yield binned_known(floats_N, np.isfinite(floats_N))


def are_nothing(values: pa.ChunkedArray) -> Mask:
    """[N] True for null, NaN, 0, -1, the first moment of 1970, and empty texts and lists."""
    if is_list(values.type):
        values = pc.fill_null(pc.list_value_length(values), 0)
    if kind_of(values.type) == "text":
        return np.asarray(pc.or_(pc.is_null(values), pc.is_in(values, pa.array(["", "0", "-1"]).cast(values.type))))
    floats_N = floats_of(values)
    return np.isnan(floats_N) | np.isin(floats_N, (0, -1))


def binned_known(values_N: F8, known_N: Mask) -> I32:
    """[N] bin of each known value, from 1; 0 for the others. Bins have equal numbers of rows, but there are narrower
    ones at both ends, down to MIN_BIN rows. A value in at least a bin's share of the rows gets its own bin."""
    codes_N, known_M = np.zeros(len(values_N), np.int32), values_N[known_N]
    if len(known_M):
        shares, tail = [*np.linspace(0, 1, NUM_BINS + 1)], 0.5 / NUM_BINS
        while tail * len(known_M) >= MIN_BIN:
            shares += [tail, 1 - tail]
            tail /= 2
        edges = np.unique(np.quantile(known_M, shares))
        codes_N[known_N] = 1 + np.searchsorted(edges, known_M, "left") + np.searchsorted(edges, known_M, "right")
    return codes_N
