"""The forward half of the embedding layer: spreads the weights of unique keys over the fields of a batch, and looks up
those of the values of sequences, which are not pooled. Does not use torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipeline.device.device import Device
from pipeline.kernels.pool import lookup, pool_bags, pool_singles
from pipeline.machine.threads import Threads, Whole
from pipeline.records import F32, I32, BatchIndex, Examples, FieldLayout
from pipeline.storage.layout import RowLayout


class Spread:
    """Embeddings of a batch, in buffers that are reused for every batch. A row has C weights: D, plus one if there is a
    first-order weight."""

    def __init__(
        self, layout: FieldLayout, row: RowLayout, batch_size: int, threads: Threads | Whole, device: Device
    ) -> None:
        self._threads = threads
        self._single_S, self._multi_M, self._mean_M = (
            device.to_device(np.array(values, np.int32)) for values in (layout.single_S, layout.multi_M, layout.mean_M)
        )
        fields = layout.num_fields
        self.embeddings_BFD: F32 = device.empty((batch_size, fields, row.embedding_dim), np.float32)
        self.first_BF: F32 = device.empty((batch_size, fields if row.first_order else 0), np.float32)

    def spread(self, weights_PC: F32, index: BatchIndex, bags_MB: I32) -> int:
        """Write the embeddings [B, F, D] and first-order weights [B, F] of a batch to the first B examples of the
        buffers. Returns B. `weights_PC`: weights of the batch's unique keys."""
        num_examples = bags_MB.shape[1] - 1
        embeddings_BFD, first_BF = self.embeddings_BFD[:num_examples], self.first_BF[:num_examples]
        self._threads.split(
            num_examples,
            lambda a, b: pool_singles(weights_PC, index.inverse_V, self._single_S, a, b, embeddings_BFD, first_BF),
        )
        if len(self._multi_M):
            fields = self._multi_M, self._mean_M
            self._threads.split(
                num_examples,
                lambda a, b: pool_bags(weights_PC, index.inverse_V, bags_MB, *fields, a, b, embeddings_BFD, first_BF),
            )
        return num_examples


@dataclass(frozen=True, slots=True)
class Lists:
    """The sequences of a batch, list by list in the order of the workflow."""

    items: tuple[F32, ...]
    """Embeddings [V, D] of each item list's values."""
    starts_LB: I32
    """[L, B + 1] start of each example's values, counted from the batch's first value."""
    firsts: tuple[int, ...]
    """First start of each item list, and the end of the last list."""
    numbers: tuple[F32, ...]
    """Values [V] of each list of numbers."""


class Items:
    """Lookup of the values of sequences into buffers that are reused for every batch and grow as needed."""

    def __init__(self, layout: FieldLayout, dim: int, threads: Threads | Whole, device: Device) -> None:
        self._threads, self._device, self._dim = threads, device, dim
        self._num_multi = len(layout.multi_M)
        self._buffers: list[F32] = [device.empty((0, dim), np.float32) for _ in layout.candidates_L]

    def look_up(self, weights_PC: F32, index: BatchIndex, examples: Examples, batch: int) -> Lists:
        """Look up the values of a batch. The result is valid until the next call. `weights_PC`: weights of its unique
        keys."""
        firsts = examples.lists[batch]
        items = [
            self._rows(number, weights_PC, index.inverse_V[begin:end])
            for number, (begin, end) in enumerate(pairwise(firsts))
        ]
        return Lists(tuple(items), examples.bags[batch][self._num_multi :], firsts, examples.list_numbers[batch])

    def _rows(self, number: int, weights_PC: F32, inverse_V: I32) -> F32:
        if len(self._buffers[number]) < len(inverse_V):
            self._buffers[number] = self._device.empty((len(inverse_V) + len(inverse_V) // 4, self._dim), np.float32)
        out_VD = self._buffers[number][: len(inverse_V)]
        none_AC = weights_PC[:0]
        self._threads.split(len(out_VD), lambda a, b: lookup(weights_PC, none_AC, inverse_V[a:b], 0, out_VD[a:b]))
        return out_VD
