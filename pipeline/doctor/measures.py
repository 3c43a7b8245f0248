"""Measures shared by several checks: areas, held-out label rates of values, dependence."""

from __future__ import annotations

import math

import numpy as np

from pipeline.doctor.seen import F64, Mask
from pipeline.records import F32, I32, Array

MIN_BIN = 100
PRIOR_ROWS = 20.0
"""Number of pseudo-rows with the mean rate added to the rows of each value."""


def rank_auc(scores_N: Array, positive_N: Mask) -> float:
    """Area under the ROC curve, ties counted as one half; 0.5 if there is only one class."""
    some, others = scores_N[positive_N], np.sort(scores_N[~positive_N])
    if not len(some) or not len(others):
        return 0.5
    below_N = np.searchsorted(others, some, "left") + np.searchsorted(others, some, "right")
    return float(below_N.mean()) / (2 * len(others))


def auc_error(auc: float, num_positive: int, num_negative: int) -> float:
    """Standard error of an AUC (Hanley and McNeil, Radiology 143, 1982)."""
    if not num_positive or not num_negative:
        return math.inf
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = auc * (1 - auc) + (num_positive - 1) * (q1 - auc * auc) + (num_negative - 1) * (q2 - auc * auc)
    return math.sqrt(max(0.0, variance) / (num_positive * num_negative))


def share_greater(a_N: F64, b_M: F64) -> float:
    """Fraction of pairs, one value from each array, in which the first is greater; 0 if an array is empty."""
    if not len(a_N) or not len(b_M):
        return 0.0
    below_N = np.searchsorted(np.sort(b_M), a_N, "left")
    return float(below_N.mean()) / len(b_M)


def held_out_rates(codes_N: I32, labels_N: F32, half_N: Mask) -> F64:
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


def binned(values_N: F32 | F64, num_bins: int = 100) -> I32:
    """[N] bin of each value: bins with equal numbers of rows, and narrower ones at both ends, down to MIN_BIN rows. A
    value in at least a bin's share of the rows gets its own bin."""
    shares = [np.linspace(0, 1, num_bins + 1)]
    tail = 0.5 / num_bins
    while tail * len(values_N) >= MIN_BIN:
        shares += [np.array([tail, 1 - tail])]
        tail /= 2
    edges = np.unique(np.quantile(values_N, np.concatenate(shares)))
    left_N = np.searchsorted(edges, values_N, "left")
    right_N = np.searchsorted(edges, values_N, "right")
    codes_N: I32 = (left_N + right_N).astype(np.int32)
    return codes_N


def binned_known(values_N: F64, known_N: Mask) -> I32:
    """[N] bin of each known value, from 1; 0 for the others."""
    codes_N = np.zeros(len(values_N), np.int32)
    if known_N.any():
        codes_N[known_N] = 1 + binned(values_N[known_N])
    return codes_N


def total_variation(a_N: F64, b_M: F64) -> float:
    """Total variation distance of two samples: the fraction of either's values that would have to change."""
    values = np.unique(np.concatenate((a_N, b_M)))
    shares = [np.bincount(np.searchsorted(values, some), minlength=len(values)) / len(some) for some in (a_N, b_M)]
    return 0.5 * float(np.abs(shares[0] - shares[1]).sum())


def farthest_apart(a_N: F64, b_M: F64) -> float:
    """Kolmogorov-Smirnov distance of two samples: the maximum difference between their cumulative distributions."""
    ends = np.concatenate((a_N, b_M))
    shares = [np.searchsorted(np.sort(some), ends, "right") / len(some) for some in (a_N, b_M)]
    return float(np.abs(shares[0] - shares[1]).max())
