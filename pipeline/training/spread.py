"""The forward half of the embedding layer: spreads the weights of unique keys over a batch. Does not use torch."""

from __future__ import annotations

import numpy as np

from pipeline.device.device import Device
from pipeline.kernels.pool import pool_bags, pool_singles
from pipeline.machine.threads import Threads, Whole
from pipeline.records import F32, I32, BatchIndex, FieldLayout
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
