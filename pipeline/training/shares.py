"""Shares of a batch: a worker's alone, or a part of one that several workers train on together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline.comm.collective import SINGLE_WORKER, Collective
from pipeline.comm.exchange import Exchange
from pipeline.comm.group import Group
from pipeline.kernels.launch import array_library
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.records import F32, I32, BatchIndex, RowRequests
from pipeline.training.forward import TINY


@dataclass(frozen=True, slots=True)
class Together:
    """Who trains on the same batches: nobody else, by default."""

    group: Group | None = None
    """The workers that train on parts of them."""
    collective: Collective = SINGLE_WORKER
    """Theirs for the dense part."""


class BatchShare(Protocol):
    index: BatchIndex
    """Index of the own examples' keys."""
    owned: BatchIndex
    """Index of the rows that are this worker's own."""

    def fetch(self, weights_PC: F32) -> F32:
        """Weights of the own examples' keys, from those of the own rows."""

    def push_gradients(self, sums_PC: F32) -> F32:
        """Gradients of the own rows, of the whole batch, from those of the own examples' keys."""

    def share_of(self, loss: Tensor, weight: Tensor) -> Tensor:
        """The part of the whole batch's mean loss that the own examples are, which weigh so much."""

    def counts(self, rows: RowOptimizer) -> tuple[I32, I32]:
        """How often the whole batch holds each own key, as differences, and how many examples do."""


class WholeBatch:
    def __init__(self, index: BatchIndex, num_fields: int) -> None:
        self.index = self.owned = index
        self._num_fields = num_fields

    def fetch(self, weights_PC: F32) -> F32:
        return weights_PC

    def push_gradients(self, sums_PC: F32) -> F32:
        return sums_PC

    def share_of(self, loss: Tensor, weight: Tensor) -> Tensor:
        return loss

    def counts(self, rows: RowOptimizer) -> tuple[I32, I32]:
        return self.index.starts_P, rows.examples_with_key(self.index, self._num_fields)


class SharedBatch:
    def __init__(self, index: BatchIndex, row_requests: RowRequests, weight: float, exchange: Exchange) -> None:
        """`row_requests`: what all ask of the own rows; `weight`: of the whole batch's examples."""
        self.index, self.owned = index, row_requests.index
        self._row_requests, self._weight, self._exchange = row_requests, weight, exchange

    def fetch(self, weights_PC: F32) -> F32:
        return self._exchange.fetch(weights_PC, self._row_requests, self.index)

    def push_gradients(self, sums_PC: F32) -> F32:
        return self._exchange.push_gradients(sums_PC, self._row_requests, self.index)

    def share_of(self, loss: Tensor, weight: Tensor) -> Tensor:
        return loss * (weight / max(self._weight, TINY))

    def counts(self, rows: RowOptimizer) -> tuple[I32, I32]:
        starts_P = self._row_requests.starts_P
        occurrences_P = array_library(starts_P).diff(starts_P)
        return starts_P, self._row_requests.examples_with_key_P if rows.counts_examples else occurrences_P


def norm_of_all(rows: Tensor, group: Group | None) -> Tensor:
    """The rows' gradients of the batch as what a norm is taken of: with several workers one number, which goes with the
    norm of the rows of all."""
    if group is None:
        return rows
    square = torch.linalg.vector_norm(rows).double().reshape(1) ** 2
    group.all_reduce(square, "agreement")
    return square.sqrt().float()
