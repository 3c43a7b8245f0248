"""CowClip: clips each row's gradient, L2 included, by its norm (Zheng et al., AAAI 2023, algorithm 1).

It works on the contiguous arrays of a batch's looked-up weights and summed gradients and does not touch the rows.
First-order weights are not clipped. There are P rows with C weights each; the first `dim` are the embedding.
"""

from __future__ import annotations

import math
from typing import Any

from numba import cuda

from pipeline.kernels import cpu, gpu
from pipeline.kernels.arithmetic import product
from pipeline.kernels.launch import launch, on_host
from pipeline.kernels.room import need
from pipeline.kernels.row_rules import FACTOR, L2, full_gradient
from pipeline.records import F32, I32


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
