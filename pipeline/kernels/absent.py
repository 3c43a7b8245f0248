"""Missed steps of rows under SGD and Adagrad, in closed form: from the first step, or after a few single steps (see
`catch_up`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.arithmetic import power, product
from pipeline.kernels.row_rules import EPS, L2, SIZE, adagrad_weight
from pipeline.records import F32, I32


@cpu
def shrinkage(
    after: int, step: int, rates_T4: F32, begins_T: I32, root: float, divided: bool
) -> float:  # fmt: skip
    """Factor by which steps `after` + 1 to `step` shrink a weight. Each subtracts lr * l2 * w, divided by root + eps if
    `divided`."""
    total = 1.0
    while step > after:
        first = max(begins_T[step], after + 1)
        share = product(np.float64(rates_T4[step, SIZE]), np.float64(rates_T4[step, L2]))
        if divided:
            share /= root + np.float64(rates_T4[step, EPS])
        total = product(total, power(1.0 - share, step - first + 1))
        step = first - 1
    return total


@cpu
def shrinks(max_l2: Any, max_lr: Any, eps: Any, total: Any) -> bool:
    """True if the L2 term cannot make a weight grow. A growing weight would make the sum of squares `total` grow
    again."""
    return product(max_lr, max_l2) <= 2 * (math.sqrt(total) + eps)


@cpu
def adagrad_absent(
    weight: Any, total: Any, last: int, step: int, rates_T4: F32, begins_T: I32, max_l2: Any, max_lr: Any
) -> tuple[Any, Any]:
    """Return the weight and the sum of squares after `step`, given those after `last`."""
    at = last
    while at < step and weight != 0:
        grad = product(max_l2, weight)
        if total + product(grad, grad) == total and shrinks(max_l2, max_lr, rates_T4[at + 1, EPS], total):
            break
        at += 1
        grad = product(rates_T4[at, L2], weight)
        weight, total = adagrad_weight(weight, total, grad, rates_T4[at, EPS], rates_T4[at, SIZE])
    if at < step and weight != 0:
        weight = rates_T4.dtype.type(
            np.float64(weight) * shrinkage(at, step, rates_T4, begins_T, math.sqrt(np.float64(total)), True)
        )
    return weight, total


@cpu
def rowwise_absent(
    row_W: F32, weights_at: int, total_at: int, begin: int, end: int, last: int, step: int, rates_T4: F32,
    begins_T: I32, max_l2: Any, max_lr: Any,
) -> None:  # fmt: skip
    """Catch up weights `begin` to `end` - 1 of a row, which share a sum of squares and so shrink by the same factor."""
    if begin >= end:
        return
    mean, factor, at = 0.0, 1.0, last
    for c in range(weights_at + begin, weights_at + end):
        mean += product(np.float64(row_W[c]), np.float64(row_W[c]))
    mean /= end - begin
    while at < step and mean > 0:
        total = row_W[total_at]
        # Storing the sum and reading it back rounds it to the row's precision.
        row_W[total_at] = np.float64(total) + product(product(np.float64(max_l2), np.float64(max_l2)), mean)
        unchanged = row_W[total_at] == total
        row_W[total_at] = total
        if unchanged and shrinks(max_l2, max_lr, rates_T4[at + 1, EPS], total):
            break
        at += 1
        l2 = np.float64(rates_T4[at, L2])
        row_W[total_at] = np.float64(total) + product(product(l2, l2), mean)
        share = product(np.float64(rates_T4[at, SIZE]), l2) / (
            math.sqrt(np.float64(row_W[total_at])) + np.float64(rates_T4[at, EPS])
        )
        factor = product(factor, 1.0 - share)
        mean = product(mean, product(1.0 - share, 1.0 - share))
    if at < step and mean > 0:
        root = math.sqrt(np.float64(row_W[total_at]))
        factor = product(factor, shrinkage(at, step, rates_T4, begins_T, root, True))
    for c in range(weights_at + begin, weights_at + end):
        row_W[c] = np.float64(row_W[c]) * factor
