"""Catch-up of the steps that a row missed because it was in no batch: what a dense optimizer would have done to it.

An absent row's gradient is its L2 term, so a missed step depends only on the row and on the step's rates. Each weight
takes its missed steps one by one, in the arithmetic of `update_rows`, until the remaining steps have a closed form:

  SGD              from the first step: one power for each run of steps with the same rates
  Adagrad          once the sum of squares no longer changes at this precision: as SGD
  row-wise         as Adagrad, on two numbers: the sum, and the factor by which all weights have shrunk
  Adam             once weight and m are below `NEGLIGIBLE`, both are zero; without L2, after `quiet` steps, when m is
                   below 1e-9 of what it was, the weight stays. m and v continue as powers
  FTRL             a row without a gradient does not move

The result is that of a dense optimizer in the same precision, bit for bit while steps are taken one by one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu, need
from pipeline.kernels.absent_adam import GROUP, LANES, adam_absent, adam_absent_rows
from pipeline.kernels.hint import prefetch_ahead
from pipeline.kernels.launch import lanes_for, launch, on_host
from pipeline.kernels.row_rules import ADAGRAD, ADAM, EPS, L2, SGD, SIZE, adagrad_weight, power, product
from pipeline.records import F32, I32, U32

SORTED = 64
"""Number of rows that are sorted together by last step, so that rows with similar last steps are processed together."""


def catch_up(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, width: int, dim: int,
    step: int, rates_T4: F32, begins_T: I32, settings: tuple[Any, ...], ahead: tuple[Any, ...],
) -> None:  # fmt: skip
    """Catch up the rows `rows_P` to the end of `step`. Rows that are up to date stay unchanged.

    `begins_T[t]`: the first step of the run of steps with equal rates that contains step t. `ahead`: the last step with
    L2; the number of steps without L2 after which Adam's weights stop moving; the largest L2; the step after which Adam
    has decayed never-trained rows to zero (for callers that only read weights); the largest learning rate.
    """
    args = (
        floats_SW, words_SW, weights_at, last_at, rows_P, width, dim, step, rates_T4, begins_T, settings, ahead,
    )  # fmt: skip
    need(len(floats_SW), len(words_SW))
    need(floats_SW.shape[1], weights_at + width)
    need(words_SW.shape[1], last_at + 1)
    need(min(len(rates_T4), len(begins_T)), step + 1)
    if on_host(words_SW):
        catch_up_cpu(rule, *args)
    elif rule in CATCH_UP_CUDA:
        lanes = lanes_for(width)
        launch(CATCH_UP_CUDA[rule], len(rows_P), *args, lanes, lanes=lanes)
        launch(mark_cuda, len(rows_P), words_SW, last_at, rows_P, step)
    else:
        launch(catch_up_rowwise_cuda, len(rows_P), *args)


@cpu
def shrinkage(after: int, step: int, rates_T4: F32, begins_T: I32, root: float, divided: bool) -> float:
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


@cpu
def catch_up_cpu(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, width: int, dim: int,
    step: int, rates_T4: F32, begins_T: I32, settings: tuple[Any, ...], ahead: tuple[Any, ...],
) -> None:  # fmt: skip
    base, row_bytes = words_SW.ctypes.data, words_SW.shape[1] * 4
    lanes_6L = np.empty((6, (GROUP * width // LANES + 1) * LANES), floats_SW.dtype)
    since_L = np.empty(lanes_6L.shape[1], np.int64)
    # Adam's rows are collected here until there are enough to sort by last step.
    rows_Q, lasts_Q, waiting = np.empty(SORTED, np.int32), np.empty(SORTED, np.int64), 0
    for p in range(rows_P.size + 1):
        if waiting == SORTED or (p == rows_P.size and waiting > 0):
            order_Q = np.argsort(lasts_Q[:waiting])
            for first in range(0, waiting, GROUP):
                order_G = order_Q[first : first + GROUP]
                adam_absent_rows(
                    floats_SW, weights_at, width, rows_Q[order_G], lasts_Q[order_G], step, rates_T4, settings, ahead,
                    lanes_6L, since_L,
                )  # fmt: skip
            waiting = 0
        if p == rows_P.size:
            break
        prefetch_ahead(base, rows_P, p, row_bytes)
        row = rows_P[p]
        last = np.int64(words_SW[row, last_at])
        if last >= step:
            continue
        words_SW[row, last_at] = np.uint32(step)
        row_W = floats_SW[row]
        if rule == ADAM and last == 0 and step > ahead[3]:
            row_W[weights_at : weights_at + width] = 0
        elif rule == ADAM:
            rows_Q[waiting], lasts_Q[waiting] = row, last
            waiting += 1
        elif rule == SGD:
            factor = shrinkage(last, step, rates_T4, begins_T, 0.0, False)
            for c in range(weights_at, weights_at + width):
                row_W[c] = np.float64(row_W[c]) * factor
        elif rule == ADAGRAD:
            for c in range(weights_at, weights_at + width):
                weight, total = adagrad_absent(
                    row_W[c], row_W[c + width], last, step, rates_T4, begins_T, ahead[2], ahead[4]
                )
                row_W[c], row_W[c + width] = weight, total
        else:
            totals_at = weights_at + width
            rowwise_absent(row_W, weights_at, totals_at, 0, dim, last, step, rates_T4, begins_T, ahead[2], ahead[4])
            totals_at += dim > 0
            rowwise_absent(row_W, weights_at, totals_at, dim, width, last, step, rates_T4, begins_T, ahead[2], ahead[4])


def _cuda_kernel_of(rule: int) -> Any:
    """Make the CUDA kernel for one rule. The rule is a compile-time constant, so a kernel uses only the registers that
    its rule needs."""

    @gpu
    def catch_up_cuda(
        floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, width: int, dim: int, step: int,
        rates_T4: F32, begins_T: I32, settings: tuple[Any, ...], ahead: tuple[Any, ...], lanes: int,
    ) -> None:  # fmt: skip
        """One thread per weight. All threads of a row read its last step, so `mark_cuda` sets it afterwards."""
        lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
        for p in range(group, rows_P.size, cuda.gridsize(1) // lanes):
            row_W, last = floats_SW[rows_P[p]], np.int64(words_SW[rows_P[p], last_at])
            if last < step:
                for c in range(weights_at + lane, weights_at + width, lanes):
                    one, two = c + width, c + 2 * width
                    if rule == ADAM and last == 0 and step > ahead[3]:
                        row_W[c] = 0
                    elif rule == ADAM:
                        weight, m, v = adam_absent(
                            row_W[c], row_W[one], row_W[two], last, step, rates_T4, settings, ahead
                        )
                        row_W[c], row_W[one], row_W[two] = weight, m, v
                    elif rule == SGD:
                        row_W[c] = np.float64(row_W[c]) * shrinkage(last, step, rates_T4, begins_T, 0.0, False)
                    else:
                        weight, total = adagrad_absent(
                            row_W[c], row_W[one], last, step, rates_T4, begins_T, ahead[2], ahead[4]
                        )
                        row_W[c], row_W[one] = weight, total

    return catch_up_cuda


CATCH_UP_CUDA = {rule: _cuda_kernel_of(rule) for rule in (SGD, ADAGRAD, ADAM)}
"""CUDA kernels of the rules that catch up each weight independently."""


@gpu
def mark_cuda(words_SW: U32, last_at: int, rows_P: I32, step: int) -> None:
    for p in range(cuda.grid(1), rows_P.size, cuda.gridsize(1)):
        if words_SW[rows_P[p], last_at] < step:
            words_SW[rows_P[p], last_at] = np.uint32(step)


@gpu
def catch_up_rowwise_cuda(
    floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, width: int, dim: int, step: int,
    rates_T4: F32, begins_T: I32, settings: tuple[Any, ...], ahead: tuple[Any, ...],
) -> None:  # fmt: skip
    """One thread per row."""
    for p in range(cuda.grid(1), rows_P.size, cuda.gridsize(1)):
        row_W, last = floats_SW[rows_P[p]], np.int64(words_SW[rows_P[p], last_at])
        if last < step:
            # One call in a loop: two calls would inline the function twice and need 156 registers.
            begin, end, total_at = 0, dim, weights_at + width
            while begin < width:
                if begin < end:
                    rowwise_absent(
                        row_W, weights_at, total_at, begin, end, last, step, rates_T4, begins_T, ahead[2], ahead[4]
                    )
                    total_at += 1
                begin, end = end, width
            words_SW[rows_P[p], last_at] = np.uint32(step)
