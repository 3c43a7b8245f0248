"""Logistic regression with L2 on one-hot features, fitted by L-BFGS."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.baselines.one_hot import F64, OneHot

STEPS = 15
"""Maximum number of steps. Each evaluates the objective once, or rarely more often."""


def fitted(rows: OneHot, labels_N: F64, weights_N: F64, l2: float, begin_M: F64) -> F64:
    """Return the weights [M] that minimize the sum of the weighted loglosses plus (l2 / 2) * w * w over all weights.
    The last weight is the bias, which has no L2; the first one, of feature 0, stays 0. `begin_M`: initial weights."""
    w_M = begin_M.copy()
    parameter = torch.nn.Parameter(torch.from_numpy(w_M))

    def objective() -> float:
        """Return the value at `w_M`, which shares memory with the parameter, and set the gradient."""
        logits_N = rows.sums(w_M[:-1]) + w_M[-1]
        errors_N = weights_N * (chances(logits_N) - labels_N)
        gradient_M = np.append(rows.back(errors_N, len(w_M) - 1) + l2 * w_M[:-1], errors_N.sum())
        gradient_M[0] = 0
        parameter.grad = torch.from_numpy(gradient_M)
        losses_N = weights_N * (np.logaddexp(0, logits_N) - labels_N * logits_N)
        return float(losses_N.sum() + l2 / 2 * (w_M[:-1] ** 2).sum())

    solver = torch.optim.LBFGS([parameter], max_iter=STEPS, history_size=5, line_search_fn="strong_wolfe")
    solver.step(objective)
    return w_M


def chances(logits_N: F64) -> F64:
    """Probabilities [N] of logits [N]."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits_N)))
