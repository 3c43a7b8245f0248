"""Adam on rows: weights and state lie in one record, and one pass updates both.

Lazy: only the rows of the batch move, with the bias correction of the run's step, as in torch.optim.SparseAdam
(Kingma and Ba, 2015, algorithm 1; eps is added before the correction).
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu
from pipeline.kernels.arithmetic import product
from pipeline.kernels.hint import AHEAD, prefetch_row
from pipeline.kernels.launch import lanes_for, launch, on_host
from pipeline.records import F32, I32, U32


def adam_rows(
    floats_SW: F32,
    words_SW: U32,
    rows_P: I32,
    grads_PC: F32,
    starts_P: I32,
    step: int,
    rate1: np.float32,
    rate2: np.float32,
    eps: np.float32,
    size: np.float32,
) -> None:
    """Update the rows `rows_P` of a slab, seen as floats and as words; the record is laid out as in `RowLayout`.

    `rate1` is 1 - beta1, `rate2` 1 - beta2, `size` from `step_size`. The last step and the number of occurrences
    (modulo 2^32) are kept behind the state.
    """
    args = (floats_SW, words_SW, rows_P, grads_PC, starts_P, step, rate1, rate2, eps, size)
    if on_host(words_SW):
        adam_rows_cpu(*args)
    else:
        lanes = lanes_for(grads_PC.shape[1])
        launch(adam_rows_cuda, len(rows_P), *args, lanes, lanes=lanes)


def step_size(lr: float, beta1: float, beta2: float, step: int) -> np.float32:
    """Learning rate with both bias corrections; `step` counts from 1."""
    return np.float32(lr * math.sqrt(1.0 - beta2**step) / (1.0 - beta1**step))


def adam_rows_reference(
    weights: F32, m: F32, v: F32, grads: F32, rate1: np.float32, rate2: np.float32, eps: np.float32, size: np.float32
) -> None:
    """The update of one array of weights with its moments, in place. `rate1` is 1 - beta1, `rate2` 1 - beta2."""
    m += (grads - m) * rate1
    v += (grads * grads - v) * rate2
    weights -= size * (m / (np.sqrt(v) + eps))


@cpu
def adam_weight(
    weight: np.float32, m: np.float32, v: np.float32, grad: np.float32, rate1: np.float32, rate2: np.float32,
    eps: np.float32, size: np.float32,
) -> tuple[np.float32, np.float32, np.float32]:  # fmt: skip
    """The arithmetic of one weight, for both targets: weight, m and v after the step."""
    m += product(grad - m, rate1)
    v += product(product(grad, grad) - v, rate2)
    return weight - product(size, m / (math.sqrt(v) + eps)), m, v


@cpu
def adam_rows_cpu(
    floats_SW: F32, words_SW: U32, rows_P: I32, grads_PC: F32, starts_P: I32, step: int,
    rate1: np.float32, rate2: np.float32, eps: np.float32, size: np.float32,
) -> None:  # fmt: skip
    width = grads_PC.shape[1]
    base, row_bytes = floats_SW.ctypes.data, floats_SW.shape[1] * 4
    for p in range(rows_P.size):
        if p + AHEAD < rows_P.size:
            prefetch_row(base, np.int64(rows_P[p + AHEAD]), row_bytes)
        row = rows_P[p]
        # Arrays of their own: only then does the compiler see that it may take many at once.
        weights_C = floats_SW[row, 2 : 2 + width]
        m_C = floats_SW[row, 2 + width : 2 + 2 * width]
        v_C = floats_SW[row, 2 + 2 * width : 2 + 3 * width]
        grads_C = grads_PC[p]
        for c in range(width):
            weight, m, v = adam_weight(weights_C[c], m_C[c], v_C[c], grads_C[c], rate1, rate2, eps, size)
            weights_C[c], m_C[c], v_C[c] = weight, m, v
        words_SW[row, 2 + 3 * width] = np.uint32(step)
        words_SW[row, 3 + 3 * width] += np.uint32(starts_P[p + 1] - starts_P[p])


@gpu
def adam_rows_cuda(
    floats_SW: F32, words_SW: U32, rows_P: I32, grads_PC: F32, starts_P: I32, step: int,
    rate1: np.float32, rate2: np.float32, eps: np.float32, size: np.float32, lanes: int,
) -> None:  # fmt: skip
    width = grads_PC.shape[1]
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for p in range(group, rows_P.size, cuda.gridsize(1) // lanes):
        row = rows_P[p]
        for c in range(lane, width, lanes):
            at_m, at_v = 2 + width + c, 2 + 2 * width + c
            weight, m, v = floats_SW[row, 2 + c], floats_SW[row, at_m], floats_SW[row, at_v]
            weight, m, v = adam_weight(weight, m, v, grads_PC[p, c], rate1, rate2, eps, size)
            floats_SW[row, 2 + c], floats_SW[row, at_m], floats_SW[row, at_v] = weight, m, v
        if lane == 0:
            words_SW[row, 2 + 3 * width] = np.uint32(step)
            words_SW[row, 3 + 3 * width] += np.uint32(starts_P[p + 1] - starts_P[p])
