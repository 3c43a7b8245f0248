"""Gradients of equal keys, summed in an order that the batch alone fixes.

The sum of a tile of 1,024 examples starts from its first occurrence; the sum of a key from its first tile. So tiles
may be summed apart, by any number of threads, and the bits stay the same.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels import cpu
from pipeline.kernels.hint import AHEAD, prefetch_line, prefetch_row
from pipeline.records import F32, I32, TILE


def segment_sum_reference(
    grads_BFD: F32, first_BF: F32, source_V: I32, starts_P: I32, scale_BF: F32, num_weights: int
) -> F32:
    """[P, C] sums of the occurrences' gradients, the first-order weight's last."""
    num_fields = grads_BFD.shape[1]
    columns = [grads_BFD.reshape(-1, grads_BFD.shape[2])]
    if num_weights > grads_BFD.shape[2]:
        columns.append(first_BF.reshape(-1, 1))
    grads = np.concatenate(columns, axis=1)
    if scale_BF.size:
        grads = grads * scale_BF[:, None]
    sums = np.zeros((len(starts_P) - 1, num_weights), np.float32)
    for p in range(len(sums)):
        tiles: dict[int, F32] = {}
        for source in source_V[starts_P[p] : starts_P[p + 1]]:
            tile = int(source) // (TILE * num_fields)
            tiles[tile] = tiles[tile] + grads[source] if tile in tiles else grads[source]
        total = None
        for tile_sum in tiles.values():
            total = tile_sum if total is None else total + tile_sum
        sums[p] = total
    return sums


@cpu
def segment_sum(
    grads_GD: F32, first_G: F32, source_V: I32, starts_P: I32, scale_G: F32, tile_G: int, out_PC: F32
) -> None:
    """Sum into `out_PC`; G = B * F gradients, `tile_G` of them to a tile.

    `first_G` and `scale_G` are empty where rows hold no first-order weight and where no bag is averaged.
    """
    dim = grads_GD.shape[1]
    width = out_PC.shape[1]
    part = np.empty(width, np.float32)
    base, first_base = grads_GD.ctypes.data, first_G.ctypes.data
    for p in range(starts_P.size - 1):
        begin, past, out_C = starts_P[p], starts_P[p + 1], out_PC[p]
        tile_end = -1
        first_tile = True
        for j in range(begin, past):
            # Gradients are shorter than rows: more of them at once.
            if j + 2 * AHEAD < source_V.size:
                ahead = np.int64(source_V[j + 2 * AHEAD])
                prefetch_row(base, ahead, dim * 4)
                if width > dim:
                    prefetch_line(first_base + ahead * 4)
            g = source_V[j]
            grads_D = grads_GD[g]
            scale = scale_G[g] if scale_G.size else np.float32(1)
            if g < tile_end:
                for d in range(dim):
                    part[d] += grads_D[d] * scale
                if width > dim:
                    part[dim] += first_G[g] * scale
                continue
            if tile_end >= 0:
                for c in range(width):
                    out_C[c] = part[c] if first_tile else out_C[c] + part[c]
                first_tile = False
            tile_end = (g // tile_G + 1) * tile_G
            for d in range(dim):
                part[d] = grads_D[d] * scale
            if width > dim:
                part[dim] = first_G[g] * scale
        for c in range(width):
            out_C[c] = part[c] if first_tile else out_C[c] + part[c]
