"""Logistic regression on one-hot features with L2, by L-BFGS (Liu and Nocedal, Mathematical Programming 45, 1989)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.baselines.one_hot import F64, OneHot

STEPS = 15
"""Maximum number of steps."""
KEPT = 5
"""Differences of weights and gradients that a step is computed from."""
ENOUGH = 1e-4
"""Least part of the objective that a step must gain, so that another one follows."""
Objective = Callable[[F64], tuple[float, F64]]
"""Value of weights, and its gradient."""


def fitted(rows: OneHot, labels_N: F64, weights_N: F64, l2: float, begin_M: F64) -> F64:
    """Weights [M] with the least sum of the weighted loglosses and of (l2 / 2) * w * w over all weights. The last one
    is the bias, which has no L2, and the first one that of feature 0, which stays 0. `begin_M`: where to begin."""

    def objective(w_M: F64) -> tuple[float, F64]:
        logits_N = rows.sums(w_M[:-1]) + w_M[-1]
        value = float((weights_N * (np.logaddexp(0, logits_N) - labels_N * logits_N)).sum())
        errors_N = weights_N * (chances(logits_N) - labels_N)
        gradient_M = np.append(rows.back(errors_N, len(w_M) - 1) + l2 * w_M[:-1], errors_N.sum())
        gradient_M[0] = 0
        return value + l2 / 2 * _dot(w_M[:-1], w_M[:-1]), gradient_M

    return minimum(objective, begin_M)


def chances(logits_N: F64) -> F64:
    """Probabilities of logits."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits_N)))


def minimum(of: Objective, w_M: F64) -> F64:
    """Weights after at most STEPS steps of L-BFGS, each halved until it lowers the objective."""
    value, gradient_M = of(w_M)
    moves: list[tuple[F64, F64, float]] = []
    for _ in range(STEPS):
        direction_M = -_inverse(moves, gradient_M)
        slope = _dot(gradient_M, direction_M)
        size = 1.0 if moves else 1 / max(1.0, float(np.abs(gradient_M).max()))
        while True:
            next_M = w_M + size * direction_M
            next_value, next_gradient_M = of(next_M)
            if next_value <= value + 1e-4 * size * slope:
                break
            size /= 2
            if size < 1e-6:
                return w_M
        step_M, change_M = next_M - w_M, next_gradient_M - gradient_M
        if (curve := _dot(step_M, change_M)) > 0:
            moves = [*moves[1 - KEPT :], (step_M, change_M, curve)]
        gain, w_M, value, gradient_M = value - next_value, next_M, next_value, next_gradient_M
        if gain < ENOUGH * abs(value):
            break
    return w_M


def _inverse(moves: list[tuple[F64, F64, float]], gradient_M: F64) -> F64:
    """Product of the approximate inverse of the second derivatives with a gradient: the two loops of L-BFGS."""
    found_M, factors = gradient_M.copy(), []
    for step_M, change_M, curve in reversed(moves):
        factors.append(_dot(step_M, found_M) / curve)
        found_M -= factors[-1] * change_M
    if moves:
        _, change_M, curve = moves[-1]
        found_M *= curve / _dot(change_M, change_M)
    for (step_M, change_M, curve), factor in zip(moves, reversed(factors), strict=True):
        found_M += (factor - _dot(change_M, found_M) / curve) * step_M
    return found_M


def _dot(a_M: F64, b_M: F64) -> float:
    # Unlike `@`, this takes no threads, whose number would change the last bits.
    return float((a_M * b_M).sum())
