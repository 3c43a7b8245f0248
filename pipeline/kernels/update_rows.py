"""A step of the rows of a batch: L2, CowClip, and the optimizer, in one pass over records that hold weights and state.

P rows, C weights of each, the first `dim` of them its embedding. CowClip is algorithm 1 of Zheng et al. (AAAI 2023),
with the L2 term inside the clipped gradient and first-order weights left alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu
from pipeline.kernels.arithmetic import product
from pipeline.kernels.hint import AHEAD, prefetch_row
from pipeline.kernels.launch import lanes_for, launch, on_host
from pipeline.kernels.row_rules import (
    ADAGRAD,
    ADAM,
    EPS,
    FACTOR,
    FTRL,
    L2,
    ROWWISE_ADAGRAD,
    SGD,
    SIZE,
    adagrad_weight,
    adam_weight,
    ftrl_sums,
    ftrl_weight,
    full_gradient,
)
from pipeline.records import F32, I32, U32


def update_rows(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, grads_PC: F32,
    weights_PC: F32, starts_P: I32, counts_P: I32, dim: int, step: int, rates_T4: F32, settings: tuple[Any, ...],
    clip: tuple[Any, Any], clipped_P: Any,
) -> None:  # fmt: skip
    """Move the rows `rows_P` of a slab, seen as floats and as words; on the CPU `grads_PC` is overwritten.

    `weights_PC`: the rows' weights, as they are now. `clip`: r and the floor; r = 0 is no clip. `counts_P`: examples
    that hold each key; `clipped_P` uint8 is set to whether its gradient was clipped; both may be empty without a clip.
    The last step and the number of occurrences (modulo 2^32) are kept in words `last_at` and the next.
    """
    args = (
        rule, floats_SW, words_SW, weights_at, last_at, rows_P, grads_PC, weights_PC, starts_P, counts_P, dim, step,
        rates_T4, settings, clip, clipped_P,
    )  # fmt: skip
    if on_host(words_SW):
        update_rows_cpu(*args)
    else:
        # One accumulator for many weights: one thread a row, since all of them read what one of them writes.
        lanes = 1 if rule == ROWWISE_ADAGRAD else lanes_for(grads_PC.shape[1])
        launch(update_rows_cuda, len(rows_P), *args, lanes, lanes=lanes)


@cpu
def squares(values_C: F32, dim: int) -> Any:
    """Sum of the squares of the first `dim`, added one by one."""
    total = product(values_C[0], values_C[0])
    for d in range(1, dim):
        total += product(values_C[d], values_C[d])
    return total


@cpu
def clip_scale(squared_norm: Any, squared_weights: Any, count: Any, one: Any, r: Any, floor: Any) -> Any:
    """By what a gradient is multiplied; `one` where it is not clipped."""
    norm = math.sqrt(squared_norm)
    bound = product(count, max(product(r, math.sqrt(squared_weights)), floor))
    return bound / norm if norm > bound else one


@cpu
def update_rows_cpu(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, grads_PC: F32,
    weights_PC: F32, starts_P: I32, counts_P: I32, dim: int, step: int, rates_T4: F32, settings: tuple[Any, ...],
    clip: tuple[Any, Any], clipped_P: Any,
) -> None:  # fmt: skip
    width, row_bytes = grads_PC.shape[1], words_SW.shape[1] * 4
    base = words_SW.ctypes.data
    size, eps, l2, factor = rates_T4[step, SIZE], rates_T4[step, EPS], rates_T4[step, L2], rates_T4[step, FACTOR]
    for p in range(rows_P.size):
        if p + AHEAD < rows_P.size:
            prefetch_row(base, np.int64(rows_P[p + AHEAD]), row_bytes)
        row = rows_P[p]
        # Arrays of their own: only then does the compiler see that it may take many at once.
        grads_C, row_W = grads_PC[p], floats_SW[row]
        weights_C = row_W[weights_at : weights_at + width]
        one_C = row_W[weights_at + width : weights_at + 2 * width]
        two_C = row_W[weights_at + 2 * width : weights_at + 3 * width]
        for c in range(width):
            grads_C[c] = full_gradient(grads_C[c], weights_C[c], l2, factor)
        if clip[0] > 0 and dim > 0:
            count = grads_PC.dtype.type(counts_P[p])
            scale = clip_scale(
                squares(grads_C, dim), squares(weights_C, dim), count, grads_PC.dtype.type(1), clip[0], clip[1]
            )
            clipped_P[p] = scale < 1
            for d in range(dim):
                grads_C[d] = product(scale, grads_C[d])
        if rule == ADAM:
            for c in range(width):
                weight, m, v = adam_weight(
                    weights_C[c], one_C[c], two_C[c], grads_C[c], settings[0], settings[1], eps, size
                )
                weights_C[c], one_C[c], two_C[c] = weight, m, v
        elif rule == SGD:
            for c in range(width):
                weights_C[c] -= product(size, grads_C[c])
        elif rule == ADAGRAD:
            for c in range(width):
                weight, total = adagrad_weight(weights_C[c], one_C[c], grads_C[c], eps, size)
                weights_C[c], one_C[c] = weight, total
        elif rule == FTRL:
            for c in range(width):
                one_C[c], two_C[c] = ftrl_sums(weights_C[c], one_C[c], two_C[c], grads_C[c], size)
                weights_C[c] = ftrl_weight(one_C[c], two_C[c], settings[0], settings[1], settings[2], size)
        else:
            rowwise_step(row_W, weights_at, weights_at + width, grads_C, 0, dim, eps, size)
            rowwise_step(row_W, weights_at, weights_at + width + (dim > 0), grads_C, dim, width, eps, size)
        words_SW[row, last_at] = np.uint32(step)
        words_SW[row, last_at + 1] += np.uint32(starts_P[p + 1] - starts_P[p])


@cpu
def rowwise_step(
    row_W: F32, weights_at: int, total_at: int, grads_C: F32, begin: int, past: int, eps: Any, size: Any
) -> None:
    """Weights `begin` to `past` - 1 share the sum in word `total_at` (row-wise Adagrad, as in DLRM and FBGEMM)."""
    if begin < past:
        row_W[total_at] += squares(grads_C[begin:past], past - begin) / grads_C.dtype.type(past - begin)
        root = math.sqrt(row_W[total_at]) + eps
        for c in range(begin, past):
            row_W[weights_at + c] -= product(size, grads_C[c] / root)


@gpu
def update_rows_cuda(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, grads_PC: F32,
    weights_PC: F32, starts_P: I32, counts_P: I32, dim: int, step: int, rates_T4: F32, settings: tuple[Any, ...],
    clip: tuple[Any, Any], clipped_P: Any, lanes: int,
) -> None:  # fmt: skip
    width = grads_PC.shape[1]
    size, eps, l2, factor = rates_T4[step, SIZE], rates_T4[step, EPS], rates_T4[step, L2], rates_T4[step, FACTOR]
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for p in range(group, rows_P.size, cuda.gridsize(1) // lanes):
        row, row_W = rows_P[p], floats_SW[rows_P[p]]
        scale = grads_PC.dtype.type(1)
        if clip[0] > 0 and dim > 0:
            # Other lanes change the row meanwhile; what was looked up stays.
            grad = full_gradient(grads_PC[p, 0], weights_PC[p, 0], l2, factor)
            squared = product(grad, grad)
            for d in range(1, dim):
                grad = full_gradient(grads_PC[p, d], weights_PC[p, d], l2, factor)
                squared += product(grad, grad)
            count = grads_PC.dtype.type(counts_P[p])
            scale = clip_scale(squared, squares(weights_PC[p], dim), count, grads_PC.dtype.type(1), clip[0], clip[1])
            if lane == 0:
                clipped_P[p] = scale < 1
        if rule == ROWWISE_ADAGRAD:
            for c in range(width):
                grads_PC[p, c] = full_gradient(grads_PC[p, c], row_W[weights_at + c], l2, factor)
            rowwise_step(row_W, weights_at, weights_at + width, grads_PC[p], 0, dim, eps, size)
            rowwise_step(row_W, weights_at, weights_at + width + (dim > 0), grads_PC[p], dim, width, eps, size)
        else:
            for c in range(lane, width, lanes):
                at, one, two = weights_at + c, weights_at + width + c, weights_at + 2 * width + c
                weight = row_W[at]
                grad = full_gradient(grads_PC[p, c], weight, l2, factor)
                if c < dim:
                    grad = product(scale, grad)
                if rule == ADAM:
                    weight, m, v = adam_weight(
                        weight, row_W[one], row_W[two], grad, settings[0], settings[1], eps, size
                    )
                    row_W[at], row_W[one], row_W[two] = weight, m, v
                elif rule == SGD:
                    row_W[at] = weight - product(size, grad)
                elif rule == ADAGRAD:
                    weight, total = adagrad_weight(weight, row_W[one], grad, eps, size)
                    row_W[at], row_W[one] = weight, total
                else:
                    row_W[one], row_W[two] = ftrl_sums(weight, row_W[one], row_W[two], grad, size)
                    row_W[at] = ftrl_weight(row_W[one], row_W[two], settings[0], settings[1], settings[2], size)
        if lane == 0:
            words_SW[row, last_at] = np.uint32(step)
            words_SW[row, last_at + 1] += np.uint32(starts_P[p + 1] - starts_P[p])
