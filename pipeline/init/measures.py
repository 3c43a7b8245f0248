"""Measures of a column against the label: area under the ROC curve, and held-out label rates of values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.init.values import F8
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


def binned_known(values_N: F8, known_N: Mask) -> I32:
    """[N] bin of each known value, from 1; 0 for the others."""
    codes_N = np.zeros(len(values_N), np.int32)
    if known_N.any():
        codes_N[known_N] = 1 + _binned(values_N[known_N])
    return codes_N


def _binned(values_N: F8) -> I32:
    """[N] bin of each value: bins with equal numbers of rows, and narrower ones at both ends, down to MIN_BIN rows. A
    value in at least a bin's share of the rows gets its own bin."""
    shares = [np.linspace(0, 1, NUM_BINS + 1)]
    tail = 0.5 / NUM_BINS
    while tail * len(values_N) >= MIN_BIN:
        shares += [np.array([tail, 1 - tail])]
        tail /= 2
    edges = np.unique(np.quantile(values_N, np.concatenate(shares)))
    left_N = np.searchsorted(edges, values_N, "left")
    right_N = np.searchsorted(edges, values_N, "right")
    codes_N: I32 = (left_N + right_N).astype(np.int32)
    return codes_N
