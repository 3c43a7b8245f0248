"""Update of a batch's rows by one step: L2 and the optimizer, in one pass over rows that hold weights and state; and
before it CowClip, which clips each row's gradient, L2 included, by its norm (Zheng et al., AAAI 2023, algorithm 1).

There are P rows with C weights each; the first `dim` are the embedding. CowClip works on the contiguous arrays of a
batch's looked-up weights and summed gradients, and does not touch the rows. First-order weights are not clipped.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu, need
from pipeline.kernels.hint import prefetch_ahead
from pipeline.kernels.launch import lanes_for, launch, on_host
from pipeline.kernels.row_rules import (
    ADAGRAD,
    ADAM,
    EPS,
    FACTOR,
    FTRL,
    L2,
    ROWWISE_ADAGRAD,
    RULE_NUMBERS,
    SGD,
    SIZE,
    adagrad_weight,
    adam_weight,
    ftrl_sums,
    ftrl_weight,
    full_gradient,
    product,
)
from pipeline.records import F32, I32, U32


def clip_gradients(
    grads_PC: F32, weights_PC: F32, counts_P: I32, dim: int, step: int, rates_T4: F32, clip: tuple[Any, Any],
    clipped_P: Any,
) -> None:  # fmt: skip
    """Add the L2 term to summed gradients and clip each row's gradient to the norm count * max(r * |w|, floor).

    `counts_P`: number of examples that contain each key. `clip`: r and the floor. `clipped_P` uint8: set to 1 for each
    clipped row, else to 0.
    """
    need(min(len(grads_PC), len(weights_PC), len(clipped_P)), len(counts_P))
    need(weights_PC.shape[1], grads_PC.shape[1])
    need(len(rates_T4), step + 1)
    args = (grads_PC, weights_PC, counts_P, dim, step, rates_T4, clip, clipped_P)
    if on_host(grads_PC):
        clip_gradients_cpu(*args)
    else:
        launch(clip_gradients_cuda, len(grads_PC), *args)


@cpu
def squares(values_C: F32, dim: int) -> Any:
    """Sum of the squares of the first `dim` values, added one by one."""
    total = product(values_C[0], values_C[0])
    for d in range(1, dim):
        total += product(values_C[d], values_C[d])
    return total


@cpu
def clip_row(grads_C: F32, weights_C: F32, count: Any, dim: int, l2: Any, factor: Any, clip: tuple[Any, Any]) -> bool:
    for c in range(grads_C.size):
        grads_C[c] = full_gradient(grads_C[c], weights_C[c], l2, factor)
    if dim == 0:
        return False
    norm = math.sqrt(squares(grads_C, dim))
    bound = product(count, max(product(clip[0], math.sqrt(squares(weights_C, dim))), clip[1]))
    if norm <= bound:
        return False
    scale = bound / norm
    for d in range(dim):
        grads_C[d] = product(scale, grads_C[d])
    return True


@cpu
def clip_gradients_cpu(
    grads_PC: F32, weights_PC: F32, counts_P: I32, dim: int, step: int, rates_T4: F32, clip: tuple[Any, Any],
    clipped_P: Any,
) -> None:  # fmt: skip
    l2, factor = rates_T4[step, L2], rates_T4[step, FACTOR]
    for p in range(counts_P.size):
        count = grads_PC.dtype.type(counts_P[p])
        clipped_P[p] = clip_row(grads_PC[p], weights_PC[p], count, dim, l2, factor, clip)


@gpu
def clip_gradients_cuda(
    grads_PC: F32, weights_PC: F32, counts_P: I32, dim: int, step: int, rates_T4: F32, clip: tuple[Any, Any],
    clipped_P: Any,
) -> None:  # fmt: skip
    """One thread per row."""
    l2, factor = rates_T4[step, L2], rates_T4[step, FACTOR]
    for p in range(cuda.grid(1), counts_P.size, cuda.gridsize(1)):
        count = grads_PC.dtype.type(counts_P[p])
        clipped_P[p] = clip_row(grads_PC[p], weights_PC[p], count, dim, l2, factor, clip)


def update_rows(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, grads_PC: F32,
    starts_P: I32, dim: int, step: int, rates_T4: F32, settings: tuple[Any, ...], whole: bool,
) -> None:  # fmt: skip
    """Update the rows `rows_P` of a slab, given as floats and as words; `grads_PC` may be overwritten.

    `whole`: True if the gradients already include L2 and the factor of the step. Word `last_at` of a row holds its last
    step, the next word its number of occurrences (modulo 2^32).
    """
    args = (
        floats_SW, words_SW, weights_at, last_at, rows_P, grads_PC, starts_P, dim, step, rates_T4, settings, whole,
    )  # fmt: skip
    need(min(len(grads_PC), len(starts_P) - 1), len(rows_P))
    need(len(floats_SW), len(words_SW))
    need(floats_SW.shape[1], weights_at + grads_PC.shape[1])
    need(words_SW.shape[1], last_at + 2)
    need(len(rates_T4), step + 1)
    if on_host(words_SW):
        update_rows_cpu(rule, *args)
    else:
        # Row-wise Adagrad has one accumulator for many weights, so one thread updates a whole row.
        lanes = 1 if rule == ROWWISE_ADAGRAD else lanes_for(grads_PC.shape[1])
        launch(UPDATE_ROWS_CUDA[rule], len(rows_P), *args, lanes, lanes=lanes)


@cpu
def rowwise_row(row_W: F32, weights_at: int, grads_C: F32, dim: int, l2: Any, factor: Any, eps: Any, size: Any) -> None:
    """Update a row under row-wise Adagrad. Embedding and first-order weight have one sum each, after the weights."""
    width = grads_C.size
    for c in range(width):
        grads_C[c] = full_gradient(grads_C[c], row_W[weights_at + c], l2, factor)
    rowwise_step(row_W, weights_at, weights_at + width, grads_C, 0, dim, eps, size)
    rowwise_step(row_W, weights_at, weights_at + width + (dim > 0), grads_C, dim, width, eps, size)


@cpu
def rowwise_step(
    row_W: F32, weights_at: int, total_at: int, grads_C: F32, begin: int, end: int, eps: Any, size: Any
) -> None:
    """Update weights `begin` to `end` - 1, which share the sum in word `total_at` (row-wise Adagrad, as in DLRM and
    FBGEMM)."""
    if begin < end:
        row_W[total_at] += squares(grads_C[begin:end], end - begin) / grads_C.dtype.type(end - begin)
        root = math.sqrt(row_W[total_at]) + eps
        for c in range(begin, end):
            row_W[weights_at + c] -= product(size, grads_C[c] / root)


@cpu
def mark(words_SW: U32, row: int, last_at: int, step: int, count: int) -> None:
    words_SW[row, last_at] = np.uint32(step)
    words_SW[row, last_at + 1] += np.uint32(count)


@cpu
def update_rows_cpu(
    rule: int, floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, grads_PC: F32,
    starts_P: I32, dim: int, step: int, rates_T4: F32, settings: tuple[Any, ...], whole: bool,
) -> None:  # fmt: skip
    """CPU kernel of `update_rows`. Each rule has a separate loop: the compiler vectorizes only innermost loops."""
    width = grads_PC.shape[1]
    size, eps, l2, factor = rates_T4[step, SIZE], rates_T4[step, EPS], rates_T4[step, L2], rates_T4[step, FACTOR]
    if whole:
        l2, factor = rates_T4.dtype.type(0), rates_T4.dtype.type(1)
    base, row_bytes = words_SW.ctypes.data, words_SW.shape[1] * 4
    one_at, two_at, end = weights_at + width, weights_at + 2 * width, weights_at + 3 * width
    if rule == ADAM:
        for p in range(rows_P.size):
            prefetch_ahead(base, rows_P, p, row_bytes)
            row, grads_C = rows_P[p], grads_PC[p]
            # Separate arrays let the compiler see that they do not overlap.
            weights_C, m_C, v_C = (
                floats_SW[row, weights_at:one_at],
                floats_SW[row, one_at:two_at],
                floats_SW[row, two_at:end],
            )
            for c in range(width):
                grad = full_gradient(grads_C[c], weights_C[c], l2, factor)
                weight, m, v = adam_weight(weights_C[c], m_C[c], v_C[c], grad, settings[0], settings[1], eps, size)
                weights_C[c], m_C[c], v_C[c] = weight, m, v
            mark(words_SW, row, last_at, step, starts_P[p + 1] - starts_P[p])
    elif rule == SGD:
        for p in range(rows_P.size):
            prefetch_ahead(base, rows_P, p, row_bytes)
            row, grads_C = rows_P[p], grads_PC[p]
            weights_C = floats_SW[row, weights_at:one_at]
            for c in range(width):
                weights_C[c] -= product(size, full_gradient(grads_C[c], weights_C[c], l2, factor))
            mark(words_SW, row, last_at, step, starts_P[p + 1] - starts_P[p])
    elif rule == ADAGRAD:
        for p in range(rows_P.size):
            prefetch_ahead(base, rows_P, p, row_bytes)
            row, grads_C = rows_P[p], grads_PC[p]
            weights_C, totals_C = floats_SW[row, weights_at:one_at], floats_SW[row, one_at:two_at]
            for c in range(width):
                grad = full_gradient(grads_C[c], weights_C[c], l2, factor)
                weights_C[c], totals_C[c] = adagrad_weight(weights_C[c], totals_C[c], grad, eps, size)
            mark(words_SW, row, last_at, step, starts_P[p + 1] - starts_P[p])
    elif rule == FTRL:
        for p in range(rows_P.size):
            prefetch_ahead(base, rows_P, p, row_bytes)
            row, grads_C = rows_P[p], grads_PC[p]
            weights_C, z_C, n_C = (
                floats_SW[row, weights_at:one_at],
                floats_SW[row, one_at:two_at],
                floats_SW[row, two_at:end],
            )
            for c in range(width):
                grad = full_gradient(grads_C[c], weights_C[c], l2, factor)
                z_C[c], n_C[c] = ftrl_sums(weights_C[c], z_C[c], n_C[c], grad, size)
                weights_C[c] = ftrl_weight(z_C[c], n_C[c], settings[0], settings[1], settings[2], size)
            mark(words_SW, row, last_at, step, starts_P[p + 1] - starts_P[p])
    else:
        for p in range(rows_P.size):
            prefetch_ahead(base, rows_P, p, row_bytes)
            row = rows_P[p]
            rowwise_row(floats_SW[row], weights_at, grads_PC[p], dim, l2, factor, eps, size)
            mark(words_SW, row, last_at, step, starts_P[p + 1] - starts_P[p])


def _cuda_kernel_of(rule: int) -> Any:
    """Make the CUDA kernel for one rule, which is a compile-time constant. A kernel for all rules would need 117
    registers per thread."""

    @gpu
    def update_rows_cuda(
        floats_SW: F32, words_SW: U32, weights_at: int, last_at: int, rows_P: I32, grads_PC: F32, starts_P: I32,
        dim: int, step: int, rates_T4: F32, settings: tuple[Any, ...], whole: bool, lanes: int,
    ) -> None:  # fmt: skip
        width = grads_PC.shape[1]
        size, eps, l2, factor = rates_T4[step, SIZE], rates_T4[step, EPS], rates_T4[step, L2], rates_T4[step, FACTOR]
        if whole:
            l2, factor = rates_T4.dtype.type(0), rates_T4.dtype.type(1)
        lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
        for p in range(group, rows_P.size, cuda.gridsize(1) // lanes):
            row, row_W = rows_P[p], floats_SW[rows_P[p]]
            if rule == ROWWISE_ADAGRAD:
                rowwise_row(row_W, weights_at, grads_PC[p], dim, l2, factor, eps, size)
            else:
                for c in range(lane, width, lanes):
                    at, one, two = weights_at + c, weights_at + width + c, weights_at + 2 * width + c
                    weight = row_W[at]
                    grad = full_gradient(grads_PC[p, c], weight, l2, factor)
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

    return update_rows_cuda


UPDATE_ROWS_CUDA = tuple(_cuda_kernel_of(rule) for rule in range(len(RULE_NUMBERS)))
"""The CUDA kernel of each rule."""
