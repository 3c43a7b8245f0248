"""AUC and normalized entropy by span, and bootstrap intervals of the differences of two learners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.init.measures import rank_auc
from pipeline.records import F64

Labels = NDArray[np.bool_]
RESAMPLES = 300
LEAST = 1e-6


def normalized_entropy(label_N: Labels, score_N: F64) -> float:
    """Log loss relative to that of the span's positive rate."""
    p_N, rate = np.clip(score_N, LEAST, 1 - LEAST), label_N.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    return float(-np.log(np.where(label_N, p_N, 1 - p_N)).mean() / entropy)


METRICS = {"auc": lambda label_N, score_N: rank_auc(score_N, label_N), "ne": normalized_entropy}


def mean_of(metric: str, labels: Sequence[Labels], scores: Sequence[F64]) -> float:
    """Mean over spans of a metric."""
    return float(np.mean([METRICS[metric](y, s) for y, s in zip(labels, scores, strict=True)]))


def interval(
    metric: str, labels: Sequence[Labels], ours: Sequence[F64], other: Sequence[F64]
) -> tuple[float, float, float]:
    """Difference between two learners in the mean of a metric over spans, and its 95 % interval. Examples are resampled
    within each span, the same ones for both."""
    rng, found = np.random.default_rng(0), np.empty(RESAMPLES)
    of = METRICS[metric]
    for sample in range(RESAMPLES):
        differences = []
        for y, one, two in zip(labels, ours, other, strict=True):
            at_N = rng.integers(0, len(y), len(y))
            differences.append(of(y[at_N], one[at_N]) - of(y[at_N], two[at_N]))
        found[sample] = np.mean(differences)
    low, high = np.quantile(found, (0.025, 0.975))
    return mean_of(metric, labels, ours) - mean_of(metric, labels, other), float(low), float(high)
