"""Steps that a row missed while it was in no batch, made up for: what a dense optimizer would have done to it.

An absent row's gradient is its L2 term, so a missed step needs nothing but the row and the step's rates. Each weight
goes through its missed steps one by one, in the arithmetic of `update_rows`, until the rest is known in closed form:

  SGD              at once: a power for each run of steps of the same rates
  Adagrad          once the sum of squares does not change any more at this precision: likewise
  row-wise         the same, on two numbers: the sum, and the factor by which all weights have shrunk
  Adam             once weight and m are below `TINY`, they are zero; without L2 once `quiet` steps are over and m is
                   below 1e-9 of what it was, the weight stays. m and v go on as powers
  FTRL             a row without a gradient does not move

So the result is that of a dense optimizer in the same precision: bit for bit while steps are gone through one by one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu
from pipeline.kernels.arithmetic import power, product
from pipeline.kernels.hint import AHEAD, prefetch_row
from pipeline.kernels.launch import lanes_for, launch, on_host
from pipeline.kernels.row_rules import ADAGRAD, ADAM, EPS, L2, SGD, SIZE, adagrad_weight, adam_weight
from pipeline.records import F32, I32, U32

TINY = 1e-12
"""A weight and its m below this are zero."""
STRIDE = 32
"""At steps that are a multiple of this it is looked whether they are."""
LANES = 8
"""Weights that the CPU takes at once."""
GROUP = 8
"""Rows that it takes side by side."""
SORTED = 64
"""Rows of which those that were last seen at about the same step are side by side."""
MOVING = -1
"""Of a weight that has not come to a stand."""


def catch_up(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, width: int, dim: int,
    step: int, rates_T4: F32, begins_T: I32, settings: tuple[Any, ...], ahead: tuple[Any, ...],
) -> None:  # fmt: skip
    """Bring the rows `rows_P` to where they stand after `step`; those that are there already stay as they are.

    `begins_T`: the first of the steps before t, t included, whose learning rate and `l2` are those of step t. `ahead`:
    the last step with L2; steps without it after which Adam's weights stand still; L2 at its most; the step past which
    Adam has brought a row that was never trained to zero, for those who only read its weights.
    """
    args = (
        rule,
        floats_SW,
        words_SW,
        weights_at,
        last_at,
        rows_P,
        width,
        dim,
        step,
        rates_T4,
        begins_T,
        settings,
        ahead,
    )
    if on_host(words_SW):
        catch_up_cpu(*args)
    elif rule in (SGD, ADAGRAD, ADAM):
        lanes = lanes_for(width)
        launch(catch_up_cuda, len(rows_P), *args, lanes, lanes=lanes)
        launch(mark_cuda, len(rows_P), words_SW, last_at, rows_P, step)
    else:
        launch(catch_up_rowwise_cuda, len(rows_P), *args)


@cpu
def shrinkage(
    after: int, step: int, rates_T4: F32, begins_T: I32, root: float, divided: bool
) -> float:  # fmt: skip
    """What a weight is multiplied by from `after` to `step`, if a step takes lr * l2 * w, `divided` by root + eps."""
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
def shrinks(most_l2: Any, rates_T4: F32, step: int, total: Any) -> bool:
    """Whether a weight does not grow by its L2 term, which would bring the sum of squares `total` to grow again."""
    return product(rates_T4[step, SIZE], most_l2) <= 2 * (math.sqrt(total) + rates_T4[step, EPS])


@cpu
def adagrad_absent(
    weight: Any, total: Any, last: int, step: int, rates_T4: F32, begins_T: I32, most_l2: Any
) -> tuple[Any, Any]:
    """Weight and sum of squares at `step` of one that was last seen at `last`."""
    at = last
    while at < step and weight != 0:
        grad = product(most_l2, weight)
        if total + product(grad, grad) == total and shrinks(most_l2, rates_T4, at + 1, total):
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
    row_W: F32, weights_at: int, total_at: int, begin: int, past: int, last: int, step: int, rates_T4: F32,
    begins_T: I32, most_l2: Any,
) -> None:  # fmt: skip
    """Weights `begin` to `past` - 1 share a sum, so they shrink by the same factor."""
    if begin >= past:
        return
    mean, factor, at = 0.0, 1.0, last
    for c in range(weights_at + begin, weights_at + past):
        mean += product(np.float64(row_W[c]), np.float64(row_W[c]))
    mean /= past - begin
    while at < step and mean > 0:
        total = row_W[total_at]
        # Stored and read, it has the precision of the row.
        row_W[total_at] = np.float64(total) + product(product(np.float64(most_l2), np.float64(most_l2)), mean)
        unchanged = row_W[total_at] == total
        row_W[total_at] = total
        if unchanged and shrinks(most_l2, rates_T4, at + 1, total):
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
    for c in range(weights_at + begin, weights_at + past):
        row_W[c] = np.float64(row_W[c]) * factor


@cpu
def adam_rest(weight: Any, m: Any, v: Any, since: int, step: int, settings: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """m and v from `since` to `step`, once the weight stands still."""
    if m != 0:
        m = product(np.float64(m), power(1.0 - np.float64(settings[0]), step - since))
    if v != 0:
        v = product(np.float64(v), power(1.0 - np.float64(settings[1]), step - since))
    return weight, m, v


@cpu
def stands_still(weight: Any, m: Any, last: int, last_l2: int) -> bool:
    """Whether no missed step moves the weight."""
    return m == 0 and (weight == 0 or last_l2 <= last)


@cpu
def adam_join(
    row_W: F32, weights_at: int, width: int, last: int, last_l2: int, begin: int, lanes_6L: F32, since_L: I32
) -> None:
    """Put a row's weights into lanes `begin` and on. `lanes_6L`: weights, m, v; the same when they came to a stand."""
    for c in range(width):
        lane = begin + c
        for part in range(3):
            value = row_W[weights_at + part * width + c]
            lanes_6L[part, lane], lanes_6L[3 + part, lane] = value, value
        still = stands_still(lanes_6L[0, lane], lanes_6L[1, lane], last, last_l2)
        since_L[lane] = last if still else MOVING


@cpu
def adam_steps(begin: int, past: int, num_lanes: int, lanes_6L: F32, rates_T4: F32, settings: tuple[Any, ...]) -> None:
    """Steps `begin` + 1 to `past` of all lanes, which have no part in each other: many at once, each in its time."""
    weights_L, m_L, v_L = lanes_6L[0, :num_lanes], lanes_6L[1, :num_lanes], lanes_6L[2, :num_lanes]
    for t in range(begin + 1, past + 1):
        size, eps, l2 = rates_T4[t, SIZE], rates_T4[t, EPS], rates_T4[t, L2]
        for c in range(num_lanes):
            weight, m, v = adam_weight(
                weights_L[c], m_L[c], v_L[c], product(l2, weights_L[c]), settings[0], settings[1], eps, size
            )
            weights_L[c], m_L[c], v_L[c] = weight, m, v


@cpu
def adam_stop(begin: int, past: int, at: int, all_of_them: bool, lanes_6L: F32, since_L: I32) -> int:
    """Take down lanes that have died by step `at`, or all; how many there were."""
    stopped = 0
    for lane in range(begin, past):
        if since_L[lane] == MOVING:
            dead = abs(lanes_6L[0, lane]) < TINY and abs(lanes_6L[1, lane]) < TINY
            if dead or all_of_them:
                for part in range(3):
                    lanes_6L[3 + part, lane] = 0 if dead and part < 2 else lanes_6L[part, lane]
                since_L[lane] = at
                stopped += 1
    return stopped


@cpu
def adam_absent_rows(
    floats_SW: F32, weights_at: int, width: int, rows_G: I32, lasts_G: I32, step: int, rates_T4: F32,
    settings: tuple[Any, ...], ahead: tuple[Any, ...], lanes_6L: F32, since_L: I32,
) -> None:  # fmt: skip
    """A few rows side by side, those that were last seen first before the others: one row alone would wait for each of
    its roots and quotients."""
    lanes_6L[:] = 0
    joined, moving, at = 0, 0, lasts_G[0]
    while at < step and (moving > 0 or joined < rows_G.size):
        if moving == 0:
            at = max(at, lasts_G[joined])
        while joined < rows_G.size and lasts_G[joined] <= at:
            begin = joined * width
            adam_join(floats_SW[rows_G[joined]], weights_at, width, lasts_G[joined], ahead[0], begin, lanes_6L, since_L)
            for lane in range(begin, begin + width):
                moving += since_L[lane] == MOVING
            joined += 1
        # The next step at which a row joins, is looked at, or is through.
        past = min(step, (at // STRIDE + 1) * STRIDE)
        if joined < rows_G.size:
            past = min(past, lasts_G[joined])
        for g in range(joined):
            end = max(lasts_G[g], ahead[0]) + ahead[1]
            if end > at:
                past = min(past, end)
        if moving > 0:
            adam_steps(at, past, -(-joined * width // LANES) * LANES, lanes_6L, rates_T4, settings)
        at = past
        for g in range(joined):
            is_over = at == max(lasts_G[g], ahead[0]) + ahead[1]
            if is_over or at % STRIDE == 0:
                moving -= adam_stop(g * width, (g + 1) * width, at, is_over, lanes_6L, since_L)
    for g in range(rows_G.size):
        row_W, begin = floats_SW[rows_G[g]], g * width
        adam_stop(begin, begin + width, step, True, lanes_6L, since_L)
        for c in range(width):
            lane = begin + c
            weight, m, v = adam_rest(
                lanes_6L[3, lane], lanes_6L[4, lane], lanes_6L[5, lane], since_L[lane], step, settings
            )
            at_c = weights_at + c
            row_W[at_c], row_W[at_c + width], row_W[at_c + 2 * width] = weight, m, v


@cpu
def adam_absent(
    weight: Any, m: Any, v: Any, last: int, step: int, rates_T4: F32, settings: tuple[Any, ...], ahead: tuple[Any, ...]
) -> tuple[Any, Any, Any]:
    """One weight, m and v: `adam_absent_row` for a thread of a GPU."""
    if stands_still(weight, m, last, ahead[0]):
        return adam_rest(weight, m, v, last, step, settings)
    at, end = last, min(step, max(last, ahead[0]) + ahead[1])
    while at < end:
        past = min((at // STRIDE + 1) * STRIDE, end)
        for t in range(at + 1, past + 1):
            grad = product(rates_T4[t, L2], weight)
            weight, m, v = adam_weight(
                weight, m, v, grad, settings[0], settings[1], rates_T4[t, EPS], rates_T4[t, SIZE]
            )
        at = past
        if (at % STRIDE == 0 or at == end) and abs(weight) < TINY and abs(m) < TINY:
            weight, m = weight - weight, m - m
            break
    return adam_rest(weight, m, v, at, step, settings)


@cpu
def catch_up_cpu(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, width: int, dim: int,
    step: int, rates_T4: F32, begins_T: I32, settings: tuple[Any, ...], ahead: tuple[Any, ...],
) -> None:  # fmt: skip
    base, row_bytes = words_SW.ctypes.data, words_SW.shape[1] * 4
    lanes_6L = np.empty((6, (GROUP * width // LANES + 1) * LANES), floats_SW.dtype)
    since_L = np.empty(lanes_6L.shape[1], np.int64)
    # Of Adam, rows that wait for others that were last seen about when they were.
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
        if p + AHEAD < rows_P.size:
            prefetch_row(base, np.int64(rows_P[p + AHEAD]), row_bytes)
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
                weight, total = adagrad_absent(row_W[c], row_W[c + width], last, step, rates_T4, begins_T, ahead[2])
                row_W[c], row_W[c + width] = weight, total
        else:
            totals_at = weights_at + width
            rowwise_absent(row_W, weights_at, totals_at, 0, dim, last, step, rates_T4, begins_T, ahead[2])
            totals_at += dim > 0
            rowwise_absent(row_W, weights_at, totals_at, dim, width, last, step, rates_T4, begins_T, ahead[2])


@gpu
def catch_up_cuda(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, width: int, dim: int,
    step: int, rates_T4: F32, begins_T: I32, settings: tuple[Any, ...], ahead: tuple[Any, ...], lanes: int,
) -> None:  # fmt: skip
    """One thread a weight. `mark_cuda` sets the last step, once no thread has to know it any more."""
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for p in range(group, rows_P.size, cuda.gridsize(1) // lanes):
        row_W, last = floats_SW[rows_P[p]], np.int64(words_SW[rows_P[p], last_at])
        if last < step:
            for c in range(weights_at + lane, weights_at + width, lanes):
                one, two = c + width, c + 2 * width
                if rule == ADAM and last == 0 and step > ahead[3]:
                    row_W[c] = 0
                elif rule == ADAM:
                    weight, m, v = adam_absent(row_W[c], row_W[one], row_W[two], last, step, rates_T4, settings, ahead)
                    row_W[c], row_W[one], row_W[two] = weight, m, v
                elif rule == SGD:
                    row_W[c] = np.float64(row_W[c]) * shrinkage(last, step, rates_T4, begins_T, 0.0, False)
                else:
                    weight, total = adagrad_absent(row_W[c], row_W[one], last, step, rates_T4, begins_T, ahead[2])
                    row_W[c], row_W[one] = weight, total


@gpu
def mark_cuda(words_SW: U32, last_at: int, rows_P: I32, step: int) -> None:
    for p in range(cuda.grid(1), rows_P.size, cuda.gridsize(1)):
        if words_SW[rows_P[p], last_at] < step:
            words_SW[rows_P[p], last_at] = np.uint32(step)


@gpu
def catch_up_rowwise_cuda(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, width: int, dim: int,
    step: int, rates_T4: F32, begins_T: I32, settings: tuple[Any, ...], ahead: tuple[Any, ...],
) -> None:  # fmt: skip
    """One thread a row."""
    for p in range(cuda.grid(1), rows_P.size, cuda.gridsize(1)):
        row_W, last = floats_SW[rows_P[p]], np.int64(words_SW[rows_P[p], last_at])
        if last < step:
            totals_at = weights_at + width
            rowwise_absent(row_W, weights_at, totals_at, 0, dim, last, step, rates_T4, begins_T, ahead[2])
            totals_at += dim > 0
            rowwise_absent(row_W, weights_at, totals_at, dim, width, last, step, rates_T4, begins_T, ahead[2])
            words_SW[rows_P[p], last_at] = np.uint32(step)
