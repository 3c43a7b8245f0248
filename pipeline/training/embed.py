"""The embedding layer: look up the row of each unique key once, spread it over the batch, and sum the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor, zeros_like

from pipeline.device.device import Device, tensor_of
from pipeline.kernels.launch import array_library
from pipeline.kernels.segment_sum import bag_scale, segment_sum
from pipeline.machine.threads import Threads, Whole
from pipeline.records import F32, I32, TILE, BatchIndex, FieldLayout
from pipeline.storage.layout import RowLayout
from pipeline.training.spread import Spread


class Embed:
    """Embedding lookup with buffers that are reused for every batch. A row has C weights: D, plus one if there is a
    first-order weight."""

    def __init__(
        self, layout: FieldLayout, row: RowLayout, batch_size: int, threads: Threads | Whole, device: Device
    ) -> None:
        self._threads, self._device = threads, device
        self._layout = layout
        self._row = row
        self._spread = Spread(layout, row, batch_size, threads, device)
        self._tensors = tensor_of(self._spread.embeddings_BFD), tensor_of(self._spread.first_BF)
        self._weights_PC = self._sums_PC = device.empty((0, row.num_weights), np.float32)
        self._grads_GD: F32 = device.empty((0, row.embedding_dim), np.float32)

    def look_up(self, num_rows: int, read: Callable[[int, int, F32], None]) -> F32:
        """[P, C] weights of rows, valid until the next call. `read` writes the weights of rows `begin` to `end` - 1."""
        if len(self._weights_PC) < num_rows:
            self._weights_PC = self._larger(num_rows)
        weights_PC = self._weights_PC[:num_rows]
        self._threads.split(num_rows, lambda a, b: read(a, b, weights_PC[a:b]))
        return weights_PC

    def spread(self, weights_PC: F32, index: BatchIndex, bags_MB: I32) -> tuple[Tensor, Tensor]:
        """Embeddings [B, F, D] and first-order weights [B, F] of a batch, valid until the next call."""
        num_examples = self._spread.spread(weights_PC, index, bags_MB)
        embeddings, first = self._tensors
        return embeddings[:num_examples], first[:num_examples]

    def zeros(self, num_examples: int) -> tuple[Tensor, Tensor]:
        """Zeros with the shape and layout of the result of `spread`, in separate memory."""
        embeddings, first = (zeros_like(tensor[:num_examples]) for tensor in self._tensors)
        return embeddings, first

    def sum_gradients(
        self, grads_BFD: F32, first_BF: F32, index: BatchIndex, bags_MB: I32, items: Sequence[F32] = ()
    ) -> F32:
        """[P, C] gradients of the batch's unique keys, valid until the next call. `items`: gradients [V, D] of the
        values of each item list."""
        num_unique = len(index.unique_P)
        if len(self._sums_PC) < num_unique:
            self._sums_PC = self._larger(num_unique)
        sums_PC = self._sums_PC[:num_unique]
        scale_G: F32 = self._sums_PC.reshape(-1)[:0]
        if any(self._layout.mean_M):
            scale_G = bag_scale(bags_MB, self._layout.multi_M, self._layout.mean_M, self._layout.num_fields)
        flat_GD = grads_BFD.reshape(grads_BFD.shape[0] * grads_BFD.shape[1], self._row.embedding_dim)
        first_G = first_BF.reshape(-1)
        if items:
            flat_GD, first_G, scale_G = self._with_items(flat_GD, first_G, scale_G, items)
        tile_G = TILE * self._layout.num_fields
        self._threads.split(
            len(sums_PC),
            lambda a, b: segment_sum(
                flat_GD, first_G, index.source_V, index.starts_P[a : b + 1], scale_G, tile_G, sums_PC[a:b]
            ),
        )
        return sums_PC

    def _with_items(self, fields_GD: F32, first_G: F32, scale_G: F32, items: Sequence[F32]) -> tuple[F32, F32, F32]:
        """Append the gradients of item lists to those of the fields. The first-order weights of item lists are not
        inputs of the model, and their gradients are not scaled."""
        ends = np.cumsum([len(fields_GD), *map(len, items)]).tolist()
        total, more = ends[-1], ends[-1] - len(fields_GD)
        if len(self._grads_GD) < total:
            self._grads_GD = self._device.empty((total + total // 4, self._row.embedding_dim), np.float32)
        flat_GD = self._grads_GD[:total]
        for part_GD, end in zip((fields_GD, *items), ends, strict=True):
            flat_GD[end - len(part_GD) : end] = part_GD
        xp = array_library(flat_GD)
        if len(first_G):
            first_G = xp.concatenate([first_G, xp.zeros(more, np.float32)])
        if len(scale_G):
            scale_G = xp.concatenate([scale_G, xp.ones(more, np.float32)])
        return flat_GD, first_G, scale_G

    def _larger(self, num_rows: int) -> F32:
        larger_PC: F32 = self._device.empty((num_rows + num_rows // 2, self._row.num_weights), np.float32)
        return larger_PC
