"""Zeroing of the weights of a new row that its field does not use.

An initial row is a function of its key alone and has all D embedding weights. The width of its field is known only
where the row is trained.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from pipeline.kernels import cpu, gpu
from pipeline.kernels.launch import launch, on_host
from pipeline.kernels.room import need
from pipeline.records import I32, U32


def clear_unused(
    words_SW: U32, values_SX: Any, last_at: int, weights_at: int, dim: int, rows_P: I32, widths_P: I32
) -> None:
    """Set embedding weights `widths[p]` to `dim` - 1 of each row `rows[p]` of a slab to zero if the row was never
    trained, that is, if word `last_at`, its last step, is 0.

    `values_SX`: the slab's memory as uint32 or uint16, as wide as a stored weight; `weights_at` counts such values."""
    need(len(widths_P), len(rows_P))
    need(values_SX.shape[1], weights_at + dim)
    need(len(values_SX), len(words_SW))
    args = words_SW, values_SX, last_at, weights_at, dim, rows_P, widths_P
    if on_host(words_SW):
        clear_unused_cpu(*args)
    else:
        launch(clear_unused_cuda, len(rows_P), *args)


def clear_unused_reference(last_step: int, weights: list[int], width: int) -> list[int]:
    return weights[:width] + [0] * (len(weights) - width) if last_step == 0 else weights


@cpu
def clear_unused_cpu(
    words_SW: U32, values_SX: Any, last_at: int, weights_at: int, dim: int, rows_P: I32, widths_P: I32
) -> None:
    for p in range(rows_P.size):
        if words_SW[rows_P[p], last_at] == 0:
            for d in range(widths_P[p], dim):
                values_SX[rows_P[p], weights_at + d] = 0


@gpu
def clear_unused_cuda(
    words_SW: U32, values_SX: Any, last_at: int, weights_at: int, dim: int, rows_P: I32, widths_P: I32
) -> None:
    """One thread per row."""
    for p in range(cuda.grid(1), rows_P.size, cuda.gridsize(1)):
        if words_SW[rows_P[p], last_at] == 0:
            for d in range(widths_P[p], dim):
                values_SX[rows_P[p], weights_at + d] = 0
