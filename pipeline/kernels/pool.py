"""Lookup and pooling: from rows to the weights of each unique key, then to one embedding per example and field."""

from __future__ import annotations

import numpy as np
from numba import cuda

from pipeline.kernels import cpu, gpu, need
from pipeline.kernels.hint import AHEAD, prefetch_row
from pipeline.kernels.launch import lanes_for, launch, on_host
from pipeline.records import F32, I32


def lookup(slab_SW: F32, staged_AW: F32, rows_P: I32, column: int, weights_PC: F32) -> None:
    """Set weights[p] to C words, starting at `column`, of row r = rows[p] of the slab, or of row -1 - r of staging if r
    is negative."""
    need(len(weights_PC), len(rows_P))
    need(slab_SW.shape[1], column + weights_PC.shape[1])
    if on_host(slab_SW):
        lookup_cpu(slab_SW, staged_AW, rows_P, column, weights_PC)
    else:
        lanes = lanes_for(weights_PC.shape[1])
        launch(lookup_cuda, len(rows_P), slab_SW, staged_AW, rows_P, column, weights_PC, lanes, lanes=lanes)


def pool_singles(
    weights_PC: F32, inverse_V: I32, single_S: I32, begin: int, end: int, embeddings_BFD: F32, first_BF: F32
) -> None:
    """Copy the weights of single-valued fields of examples `begin` to `end` - 1.

    `first_BF` has no columns if rows have no first-order weight.
    """
    _need_examples(weights_PC, end, embeddings_BFD, first_BF)
    need(len(inverse_V), len(single_S) * len(embeddings_BFD))
    if on_host(weights_PC):
        pool_singles_cpu(weights_PC, inverse_V, single_S, begin, end, embeddings_BFD, first_BF)
    else:
        lanes = lanes_for(weights_PC.shape[1])
        launch(
            pool_singles_cuda, end - begin, weights_PC, inverse_V, single_S, begin, end,
            embeddings_BFD, first_BF, lanes, lanes=lanes,
        )  # fmt: skip


def pool_bags(
    weights_PC: F32, inverse_V: I32, bags_MB: I32, multi_M: I32, mean_M: I32, begin: int, end: int,
    embeddings_BFD: F32, first_BF: F32,
) -> None:  # fmt: skip
    """Sum or average the weights of each bag of examples `begin` to `end` - 1, in the order of its values. An empty bag
    yields zeros."""
    _need_examples(weights_PC, end, embeddings_BFD, first_BF)
    need(bags_MB.shape[1], end + 1)
    if on_host(weights_PC):
        pool_bags_cpu(weights_PC, inverse_V, bags_MB, multi_M, mean_M, begin, end, embeddings_BFD, first_BF)
    else:
        lanes = lanes_for(weights_PC.shape[1])
        launch(
            pool_bags_cuda, end - begin, weights_PC, inverse_V, bags_MB, multi_M, mean_M, begin, end,
            embeddings_BFD, first_BF, lanes, lanes=lanes,
        )  # fmt: skip


def _need_examples(weights_PC: F32, end: int, embeddings_BFD: F32, first_BF: F32) -> None:
    need(min(len(embeddings_BFD), len(first_BF)), end)
    need(weights_PC.shape[1], embeddings_BFD.shape[2] + (first_BF.shape[1] > 0))


def lookup_reference(slab_SW: F32, staged_AW: F32, rows_P: I32, column: int, weights_PC: F32) -> None:
    for p, row in enumerate(rows_P):
        whole = slab_SW[row] if row >= 0 else staged_AW[-1 - row]
        weights_PC[p] = whole[column : column + weights_PC.shape[1]]


@cpu
def lookup_cpu(slab_SW: F32, staged_AW: F32, rows_P: I32, column: int, weights_PC: F32) -> None:
    # Prefetch only the part of a row up to the end of its weights.
    base, row_bytes = slab_SW.ctypes.data, slab_SW.shape[1] * 4
    part_bytes = (column + weights_PC.shape[1]) * 4
    for p in range(rows_P.size):
        if p + AHEAD < rows_P.size:
            prefetch_row(base + np.int64(rows_P[p + AHEAD]) * row_bytes, 0, part_bytes)
        row = rows_P[p]
        whole_W = slab_SW[row] if row >= 0 else staged_AW[-1 - row]
        # Separate arrays let the compiler vectorize the copy.
        weights_C, part_C = weights_PC[p], whole_W[column : column + weights_PC.shape[1]]
        for c in range(weights_C.size):
            weights_C[c] = part_C[c]


def pool_reference(
    weights_PC: F32, inverse_V: I32, bags_MB: I32, single_S: I32, multi_M: I32, mean_M: I32, dim: int
) -> tuple[F32, F32]:
    """Return embeddings [B, F, D] and first-order weights [B, F] (zeros if rows have none)."""
    num_examples = bags_MB.shape[1] - 1
    weights_PC = weights_PC if weights_PC.shape[1] > dim else np.pad(weights_PC, ((0, 0), (0, 1)))
    pooled_BFC = np.zeros((num_examples, len(single_S) + len(multi_M), dim + 1), np.float32)
    for s, field in enumerate(single_S):
        pooled_BFC[:, field] = weights_PC[inverse_V[s * num_examples : (s + 1) * num_examples]]
    for m, field in enumerate(multi_M):
        for b in range(num_examples):
            bag = inverse_V[bags_MB[m, b] : bags_MB[m, b + 1]]
            for p in bag:
                pooled_BFC[b, field] += weights_PC[p]
            if mean_M[m] and len(bag):
                pooled_BFC[b, field] *= np.float32(1) / np.float32(len(bag))
    return pooled_BFC[:, :, :dim], pooled_BFC[:, :, dim]


@cpu
def pool_singles_cpu(
    weights_PC: F32, inverse_V: I32, single_S: I32, begin: int, end: int, embeddings_BFD: F32, first_BF: F32
) -> None:
    num_examples, _, dim = embeddings_BFD.shape
    for b in range(begin, end):
        for s in range(single_S.size):
            p = inverse_V[s * num_examples + b]
            field = single_S[s]
            weights_C, embedding_D = weights_PC[p], embeddings_BFD[b, field]
            for d in range(dim):
                embedding_D[d] = weights_C[d]
            if first_BF.size:
                first_BF[b, field] = weights_C[dim]


@cpu
def pool_bags_cpu(
    weights_PC: F32, inverse_V: I32, bags_MB: I32, multi_M: I32, mean_M: I32, begin: int, end: int,
    embeddings_BFD: F32, first_BF: F32,
) -> None:  # fmt: skip
    dim = embeddings_BFD.shape[2]
    for m in range(multi_M.size):
        field = multi_M[m]
        for b in range(begin, end):
            bag = inverse_V[bags_MB[m, b] : bags_MB[m, b + 1]]
            scale = np.float32(1)
            if mean_M[m] and bag.size:
                scale = np.float32(1) / np.float32(bag.size)
            for d in range(dim):
                total = np.float32(0)
                for p in bag:
                    total += weights_PC[p, d]
                embeddings_BFD[b, field, d] = total * scale
            if first_BF.size:
                total = np.float32(0)
                for p in bag:
                    total += weights_PC[p, dim]
                first_BF[b, field] = total * scale


@gpu
def lookup_cuda(slab_SW: F32, staged_AW: F32, rows_P: I32, column: int, weights_PC: F32, lanes: int) -> None:
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for p in range(group, rows_P.size, cuda.gridsize(1) // lanes):
        row = rows_P[p]
        for c in range(lane, weights_PC.shape[1], lanes):
            weights_PC[p, c] = slab_SW[row, column + c] if row >= 0 else staged_AW[-1 - row, column + c]


@gpu
def pool_singles_cuda(
    weights_PC: F32, inverse_V: I32, single_S: I32, begin: int, end: int, embeddings_BFD: F32, first_BF: F32,
    lanes: int,
) -> None:  # fmt: skip
    num_examples, dim = embeddings_BFD.shape[0], embeddings_BFD.shape[2]
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for b in range(begin + group, end, cuda.gridsize(1) // lanes):
        for s in range(single_S.size):
            p, field = inverse_V[s * num_examples + b], single_S[s]
            for c in range(lane, weights_PC.shape[1], lanes):
                if c < dim:
                    embeddings_BFD[b, field, c] = weights_PC[p, c]
                elif first_BF.size > 0:
                    first_BF[b, field] = weights_PC[p, c]


@gpu
def pool_bags_cuda(
    weights_PC: F32, inverse_V: I32, bags_MB: I32, multi_M: I32, mean_M: I32, begin: int, end: int,
    embeddings_BFD: F32, first_BF: F32, lanes: int,
) -> None:  # fmt: skip
    lane, group = cuda.grid(1) % lanes, cuda.grid(1) // lanes
    for b in range(begin + group, end, cuda.gridsize(1) // lanes):
        for m in range(multi_M.size):
            bag = inverse_V[bags_MB[m, b] : bags_MB[m, b + 1]]
            scale = np.float32(1)
            if mean_M[m] != 0 and bag.size > 0:
                scale = np.float32(1) / np.float32(bag.size)
            for c in range(lane, weights_PC.shape[1], lanes):
                total = np.float32(0)
                for p in bag:
                    total += weights_PC[p, c]
                if c < embeddings_BFD.shape[2]:
                    embeddings_BFD[b, multi_M[m], c] = total * scale
                elif first_BF.size > 0:
                    first_BF[b, multi_M[m]] = total * scale
