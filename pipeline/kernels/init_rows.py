"""Initial row of a key, from a counter-based generator; does not depend on order, tier, batch size or worker.

It has all D embedding weights. The width of its field is known only where the row is trained, and weights that the
field does not use are set to zero there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu, need, need_cpu
from pipeline.kernels.hashing import mix, mix_reference
from pipeline.kernels.launch import launch, on_host
from pipeline.records import I32, U32, U64


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


GOLDEN = 0x9E3779B97F4A7C15


def init_weights_reference(key: int, seed: int, std: float, num_weights: int) -> list[np.float32]:
    """Normally distributed weights: Box-Muller transform (1958) of SplitMix64's output function of (seed, key,
    counter)."""
    mask = (1 << 64) - 1
    base = mix_reference((key ^ mix_reference((seed + GOLDEN) & mask)) & mask)
    weights = []
    for pair in range((num_weights + 1) // 2):
        one = mix_reference((base + (2 * pair + 1) * GOLDEN) & mask)
        two = mix_reference((base + (2 * pair + 2) * GOLDEN) & mask)
        radius = math.sqrt(-2.0 * math.log(((one >> 11) + 1) * 2.0**-53))
        angle = 2.0 * math.pi * ((two >> 11) * 2.0**-53)
        weights += [np.float32(std * radius * math.cos(angle)), np.float32(std * radius * math.sin(angle))]
    return weights[:num_weights]


@cpu
def init_rows(keys_U: U64, seed: np.uint64, std: float, num_normal: int, out_UW: U32) -> None:
    """Write a row [U, W] for each key [U]: the key, `num_normal` weights from a normal distribution with standard
    deviation `std`, and zeros in all other words."""
    need_cpu(out_UW.shape[0], keys_U.size)
    need_cpu(out_UW.shape[1], 2 + num_normal)
    out_UW[:, :] = 0
    weights_UW = out_UW.view(np.float32)
    golden = np.uint64(GOLDEN)
    seed = mix(seed + golden)
    for u in range(keys_U.size):
        key = keys_U[u]
        out_UW[u, 0] = np.uint32(key & np.uint64(0xFFFFFFFF))
        out_UW[u, 1] = np.uint32(key >> np.uint64(32))
        base = mix(key ^ seed)
        for c in range(0, num_normal, 2):
            one = mix(base + np.uint64(c + 1) * golden)
            two = mix(base + np.uint64(c + 2) * golden)
            radius = math.sqrt(-2.0 * math.log(np.float64((one >> np.uint64(11)) + np.uint64(1)) * 2.0**-53))
            angle = 2.0 * math.pi * (np.float64(two >> np.uint64(11)) * 2.0**-53)
            weights_UW[u, 2 + c] = np.float32(std * radius * math.cos(angle))
            if c + 1 < num_normal:
                weights_UW[u, 3 + c] = np.float32(std * radius * math.sin(angle))
