"""Initial row of a key, from a counter-based generator; does not depend on order, tier, batch size or worker."""

from __future__ import annotations

import math

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.mix import mix, mix_reference
from pipeline.kernels.room import need_cpu
from pipeline.records import U32, U64

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
