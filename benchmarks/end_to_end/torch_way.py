"""Programs that the pipeline is compared with: the usual torch way, all in memory, and the dense model alone."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.end_to_end.advantages import EAGER, Advantages
from pipeline.models import DeepFM


class Sparse:
    """Training with nn.Embedding(sparse=True) and torch.optim.SparseAdam; dense IDs; IDs and labels are in memory."""

    def __init__(
        self, ids_NF: np.ndarray, labels_N: np.ndarray, num_keys: int, dim: int, hidden: tuple[int, ...],
        advantages: Advantages = EAGER,
    ) -> None:  # fmt: skip
        self._ids_NF, self._labels_N = torch.from_numpy(ids_NF), torch.from_numpy(labels_N)
        self._embedding = nn.Embedding(num_keys, dim, sparse=True)
        self._first_order = nn.Embedding(num_keys, 1, sparse=True)
        nn.init.normal_(self._embedding.weight, std=0.01)
        nn.init.zeros_(self._first_order.weight)
        self._model = DeepFM(ids_NF.shape[1], 0, dim, hidden)
        self._loss_of = advantages.loss_of(self._model)
        rows = [self._embedding.weight, self._first_order.weight]
        self._optimizers = [
            torch.optim.SparseAdam(rows, lr=1e-3),
            torch.optim.Adam(self._model.parameters(), lr=1e-3, fused=True),
        ]

    def train(self, num_batches: int, batch_size: int) -> float:
        """Train, and return examples per second."""
        start = time.perf_counter()
        for batch in range(num_batches):
            at = batch * batch_size % len(self._ids_NF)
            ids_BF, labels_B = self._ids_NF[at : at + batch_size], self._labels_N[at : at + batch_size]
            for optimizer in self._optimizers:
                optimizer.zero_grad(set_to_none=True)
            self._loss_of(self._embedding(ids_BF), self._first_order(ids_BF).squeeze(2), labels_B).backward()
            for optimizer in self._optimizers:
                optimizer.step()
        return num_batches * batch_size / (time.perf_counter() - start)


class Ceiling:
    """The dense model on ready-made embeddings: forward, backward down to the embeddings, dense Adam."""

    def __init__(
        self, num_fields: int, batch_size: int, dim: int, hidden: tuple[int, ...], advantages: Advantages = EAGER
    ) -> None:
        self._embeddings = torch.randn(batch_size, num_fields, dim) * 0.01
        self._first = torch.zeros(batch_size, num_fields)
        self._labels = (torch.rand(batch_size) < 0.25).float()
        self._model = DeepFM(num_fields, 0, dim, hidden)
        self._loss_of = advantages.loss_of(self._model)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3, fused=True)

    def train(self, num_batches: int) -> float:
        """Train, and return examples per second."""
        start = time.perf_counter()
        for _ in range(num_batches):
            self._step(self._embeddings.detach().requires_grad_(), self._first.detach().requires_grad_())
        return num_batches * len(self._labels) / (time.perf_counter() - start)

    def _step(self, embeddings: Tensor, first: Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._loss_of(embeddings, first, self._labels).backward()
        self._optimizer.step()
