"""Missed steps of rows under Adam, one by one until the weights stop moving (see `catch_up`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.row_rules import EPS, L2, SIZE, adam_weight, power, product
from pipeline.records import F32, I32

NEGLIGIBLE = 1e-12
"""A weight and its m are set to zero if the magnitudes of both are below this bound."""
CHECK_STEPS = 32
"""Weights are compared with `NEGLIGIBLE` every this many steps."""
LANES = 8
"""Number of weights that the CPU processes at once."""
GROUP = 8
"""Number of rows that the CPU processes side by side."""
MOVING = -1
"""Mark in `since_L` for a weight that still moves."""


@cpu
def adam_rest(weight: Any, m: Any, v: Any, since: int, step: int, settings: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Decay m and v from `since` to `step`, for a weight that no longer moves."""
    if m != 0:
        m = product(np.float64(m), power(1.0 - np.float64(settings[0]), step - since))
    if v != 0:
        v = product(np.float64(v), power(1.0 - np.float64(settings[1]), step - since))
    return weight, m, v


@cpu
def stands_still(weight: Any, m: Any, last: int, last_l2: int) -> bool:
    """True if no missed step moves the weight."""
    return m == 0 and (weight == 0 or last_l2 <= last)


@cpu
def adam_join(
    row_W: F32, weights_at: int, width: int, last: int, last_l2: int, begin: int, lanes_6L: F32, since_L: I32
) -> None:
    """Load a row's weights into the lanes from `begin` on. `lanes_6L` holds weight, m and v, then their values at the
    step at which the weight stopped moving."""
    for c in range(width):
        lane = begin + c
        for part in range(3):
            value = row_W[weights_at + part * width + c]
            lanes_6L[part, lane], lanes_6L[3 + part, lane] = value, value
        still = stands_still(lanes_6L[0, lane], lanes_6L[1, lane], last, last_l2)
        since_L[lane] = last if still else MOVING


@cpu
def adam_steps(begin: int, end: int, num_lanes: int, lanes_6L: F32, rates_T4: F32, settings: tuple[Any, ...]) -> None:
    """Apply steps `begin` + 1 to `end` to all lanes. Lanes are independent, so the loop over them vectorizes."""
    weights_L, m_L, v_L = lanes_6L[0, :num_lanes], lanes_6L[1, :num_lanes], lanes_6L[2, :num_lanes]
    for t in range(begin + 1, end + 1):
        size, eps, l2 = rates_T4[t, SIZE], rates_T4[t, EPS], rates_T4[t, L2]
        for c in range(num_lanes):
            weight, m, v = adam_weight(
                weights_L[c], m_L[c], v_L[c], product(l2, weights_L[c]), settings[0], settings[1], eps, size
            )
            weights_L[c], m_L[c], v_L[c] = weight, m, v


@cpu
def adam_stop(begin: int, end: int, at: int, all_of_them: bool, lanes_6L: F32, since_L: I32) -> int:
    """Record the values of moving lanes and mark the lanes as stopped at step `at`: those with negligible values, or
    all of them. Returns the number of lanes stopped."""
    stopped = 0
    for lane in range(begin, end):
        if since_L[lane] == MOVING:
            dead = abs(lanes_6L[0, lane]) < NEGLIGIBLE and abs(lanes_6L[1, lane]) < NEGLIGIBLE
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
    """Catch up a few rows side by side, sorted by last step, earliest first. Several rows together hide the latency of
    square roots and divisions."""
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
        # The next step at which a row joins, is checked, or stops moving.
        stop = min(step, (at // CHECK_STEPS + 1) * CHECK_STEPS)
        if joined < rows_G.size:
            stop = min(stop, lasts_G[joined])
        for g in range(joined):
            end = max(lasts_G[g], ahead[0]) + ahead[1]
            if end > at:
                stop = min(stop, end)
        if moving > 0:
            adam_steps(at, stop, -(-joined * width // LANES) * LANES, lanes_6L, rates_T4, settings)
        at = stop
        for g in range(joined):
            is_over = at == max(lasts_G[g], ahead[0]) + ahead[1]
            if is_over or at % CHECK_STEPS == 0:
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
    """Catch up one weight with its m and v: the counterpart of `adam_absent_rows` for one GPU thread."""
    if stands_still(weight, m, last, ahead[0]):
        return adam_rest(weight, m, v, last, step, settings)
    at, end = last, min(step, max(last, ahead[0]) + ahead[1])
    while at < end:
        stop = min((at // CHECK_STEPS + 1) * CHECK_STEPS, end)
        for t in range(at + 1, stop + 1):
            grad = product(rates_T4[t, L2], weight)
            weight, m, v = adam_weight(
                weight, m, v, grad, settings[0], settings[1], rates_T4[t, EPS], rates_T4[t, SIZE]
            )
        at = stop
        if (at % CHECK_STEPS == 0 or at == end) and abs(weight) < NEGLIGIBLE and abs(m) < NEGLIGIBLE:
            weight, m = weight - weight, m - m
            break
    return adam_rest(weight, m, v, at, step, settings)
