"""Sum of the gradients of equal keys, in an order that depends only on the batch.

The sum over a tile of 1,024 examples starts from its first occurrence; the sum over a key's tiles starts from its first
tile. Any number of threads can therefore sum tiles separately, with the same bits. A tile is 1,024 * F consecutive
occurrences, so the values of sequences, which follow those of the fields, also have tiles.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32

from pipeline.kernels import cpu, gpu, gpu_blocks_of, need
from pipeline.kernels.hint import AHEAD, prefetch_line, prefetch_row
from pipeline.kernels.launch import MAX_BLOCKS, array_library, lanes_for, launch, launch_blocks, on_host
from pipeline.kernels.row_rules import product
from pipeline.records import F32, I32, TILE

LONG = 128
"""A key with more occurrences than this is summed by a whole GPU thread block, with one group of threads per tile."""
LONG_THREADS = 1024


def segment_sum(
    grads_GD: F32, first_G: F32, source_V: I32, starts_P: I32, scale_G: F32, tile_G: int, out_PC: F32
) -> None:
    """Sum the gradients of each key into `out_PC`; there are G = B * F gradients, `tile_G` of them per tile.

    `first_G` is empty if rows have no first-order weight, `scale_G` if no bag is averaged.
    """
    args = (grads_GD, first_G, source_V, starts_P, scale_G, tile_G, out_PC)
    num_keys = len(starts_P) - 1
    need(min(num_keys, len(out_PC)), max(num_keys, len(out_PC)))
    need(out_PC.shape[1], grads_GD.shape[1])
    if len(scale_G):
        need(len(scale_G), len(grads_GD))
    if on_host(grads_GD):
        segment_sum_cpu(*args)
        return
    lanes = lanes_for(out_PC.shape[1])
    launch(short_sums_cuda, len(out_PC), *args, lanes, lanes=lanes)
    launch_blocks(long_sums_cuda, min(len(out_PC), MAX_BLOCKS), LONG_THREADS, *args, lanes)


def bag_scale(bags_MB: I32, multi_M: tuple[int, ...], mean_M: tuple[bool, ...], num_fields: int) -> F32:
    """[B * F] factor of each occurrence's gradient: 1 / length of the bag if the bag is averaged, else 1."""
    xp = array_library(bags_MB)
    lengths_MB = xp.diff(bags_MB, axis=1)
    scale_BF: F32 = xp.ones((lengths_MB.shape[1], num_fields), np.float32)
    for m, (field, mean) in enumerate(zip(multi_M, mean_M, strict=True)):
        if mean:
            scale_BF[:, field] = np.float32(1) / xp.maximum(lengths_MB[m], 1).astype(np.float32)
    return scale_BF.reshape(-1)


def segment_sum_reference(
    grads_BFD: F32, first_BF: F32, source_V: I32, starts_P: I32, scale_BF: F32, num_weights: int,
    items_QD: F32 | None = None,
) -> F32:  # fmt: skip
    """[P, C] sums of the occurrences' gradients. The last column is that of the first-order weight, if there is one.
    `items_QD`: gradients of the values of sequences; their first-order weights are not inputs of the model."""
    num_fields = grads_BFD.shape[1]
    columns = [grads_BFD.reshape(grads_BFD.shape[0] * num_fields, grads_BFD.shape[2])]
    if num_weights > grads_BFD.shape[2]:
        columns.append(first_BF.reshape(-1, 1))
    grads = np.concatenate(columns, axis=1)
    if scale_BF.size:
        grads = grads * scale_BF[:, None]
    if items_QD is not None:
        zeros = np.zeros((len(items_QD), num_weights - items_QD.shape[1]), np.float32)
        grads = np.concatenate([grads, np.concatenate([items_QD, zeros], axis=1)])
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
def segment_sum_cpu(
    grads_GD: F32, first_G: F32, source_V: I32, starts_P: I32, scale_G: F32, tile_G: int, out_PC: F32
) -> None:
    dim = grads_GD.shape[1]
    width = out_PC.shape[1]
    part = np.empty(width, np.float32)
    base, first_base = grads_GD.ctypes.data, first_G.ctypes.data
    for p in range(starts_P.size - 1):
        begin, end, out_C = starts_P[p], starts_P[p + 1], out_PC[p]
        tile_end = -1
        first_tile = True
        for j in range(begin, end):
            # Gradients are shorter than rows, so prefetch further ahead.
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


@cpu
def gradient(grads_GD: F32, first_G: F32, scale_G: F32, g: int, c: int) -> np.float32:
    """Contribution of occurrence `g` to weight `c`. Used by GPU threads; the CPU kernel processes whole rows."""
    value = grads_GD[g, c] if c < grads_GD.shape[1] else first_G[g]
    return product(value, scale_G[g]) if scale_G.size > 0 else value


@gpu
def short_sums_cuda(
    grads_GD: F32, first_G: F32, source_V: I32, starts_P: I32, scale_G: F32, tile_G: int, out_PC: F32, lanes: int
) -> None:
    """Sum keys with few occurrences: one thread per weight."""
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for p in range(group, out_PC.shape[0], cuda.gridsize(1) // lanes):
        begin, end = starts_P[p], starts_P[p + 1]
        if end - begin > LONG:
            continue
        for c in range(lane, out_PC.shape[1], lanes):
            total = part = np.float32(0)
            tile_end, first_tile = 0, True
            for j in range(begin, end):
                g = source_V[j]
                value = gradient(grads_GD, first_G, scale_G, g, c)
                if g < tile_end:
                    part += value
                    continue
                if tile_end > 0:
                    total = part if first_tile else total + part
                    first_tile = False
                # Divide only here: on a GPU, a division takes as long as ten additions.
                tile_end, part = (g // tile_G + 1) * tile_G, value
            out_PC[p, c] = part if first_tile else total + part


@cpu
def first_from(source_V: I32, begin: int, end: int, minimum: int) -> int:
    """Position, in begin .. end, of the first occurrence at or after `minimum`, the start of a tile. Tiles ascend in
    this range."""
    while begin < end:
        middle = (begin + end) // 2
        if source_V[middle] < minimum:
            begin = middle + 1
        else:
            end = middle
    return begin


@gpu_blocks_of(LONG_THREADS, 1)
def long_sums_cuda(
    grads_GD: F32, first_G: F32, source_V: I32, starts_P: I32, scale_G: F32, tile_G: int, out_PC: F32, lanes: int
) -> None:
    """Sum keys with many occurrences: each group of `lanes` threads sums a tile; the first group adds the tiles in
    order."""
    parts = cuda.shared.array(LONG_THREADS, float32)
    filled = cuda.shared.array(LONG_THREADS, int32)
    t, groups = cuda.threadIdx.x, cuda.blockDim.x // lanes
    lane, group = t % lanes, t // lanes
    for p in range(cuda.blockIdx.x, out_PC.shape[0], cuda.gridDim.x):
        begin, end = starts_P[p], starts_P[p + 1]
        if end - begin <= LONG:
            continue
        last_tile = source_V[end - 1] // tile_G
        for first_c in range(0, out_PC.shape[1], lanes):
            c = first_c + lane
            total, empty = np.float32(0), True
            for first_tile in range(source_V[begin] // tile_G, last_tile + 1, groups):
                minimum = (first_tile + group) * tile_G
                begins = first_from(source_V, begin, end, minimum)
                ends = first_from(source_V, begins, end, minimum + tile_G)
                filled[t] = ends - begins
                if c < out_PC.shape[1]:
                    parts[t] = tile_sum(grads_GD, first_G, scale_G, source_V, begins, ends, c)
                cuda.syncthreads()
                if group == 0:
                    for other in range(lane, groups * lanes, lanes):
                        if filled[other] > 0:
                            total = parts[other] if empty else total + parts[other]
                            empty = False
                cuda.syncthreads()
            if group == 0 and c < out_PC.shape[1]:
                out_PC[p, c] = total


@cpu
def tile_sum(grads_GD: F32, first_G: F32, scale_G: F32, source_V: I32, begins: int, ends: int, c: int) -> np.float32:
    """Sum over the occurrences of one tile, in order from the first. Four are loaded at once."""
    total = np.float32(0)
    if begins < ends:
        total = gradient(grads_GD, first_G, scale_G, source_V[begins], c)
    j = begins + 1
    while j + 4 <= ends:
        one = gradient(grads_GD, first_G, scale_G, source_V[j], c)
        two = gradient(grads_GD, first_G, scale_G, source_V[j + 1], c)
        three = gradient(grads_GD, first_G, scale_G, source_V[j + 2], c)
        four = gradient(grads_GD, first_G, scale_G, source_V[j + 3], c)
        total = ((total + one) + two) + three
        total += four
        j += 4
    while j < ends:
        total += gradient(grads_GD, first_G, scale_G, source_V[j], c)
        j += 1
    return total
