"""Adam on rows: weights and state lie in one record, and one pass updates both.

Lazy: only the rows of the batch move, with the bias correction of the run's step, as in torch.optim.SparseAdam
(Kingma and Ba, 2015, algorithm 1; eps is added before the correction).
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_row
from pipeline.records import F32, I32, U32


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

    The last step and the number of occurrences (modulo 2^32) are kept behind the state.
    """
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
            grad, m, v = grads_C[c], m_C[c], v_C[c]
            m += (grad - m) * rate1
            v += (grad * grad - v) * rate2
            m_C[c] = m
            v_C[c] = v
            weights_C[c] -= size * (m / (math.sqrt(v) + eps))
        words_SW[row, 2 + 3 * width] = np.uint32(step)
        words_SW[row, 3 + 3 * width] += np.uint32(starts_P[p + 1] - starts_P[p])
