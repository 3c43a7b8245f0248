"""A worker's share of a batch: the whole batch, or part of a batch on which several workers train together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline.comm.collective import SINGLE_WORKER, Collective
from pipeline.comm.exchange import Exchange
from pipeline.comm.group import Group
from pipeline.kernels.launch import array_library
from pipeline.models.losses import TINY
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.records import F32, I32, BatchIndex, RowRequests


@dataclass(frozen=True, slots=True)
class Together:
    """Workers that train on the same batches; by default this worker alone."""

    group: Group | None = None
    """Group of the workers that train on parts of the same batches; None for a single worker."""
    collective: Collective = SINGLE_WORKER
    """Collective of these workers for the dense part."""


class BatchShare(Protocol):
    index: BatchIndex
    """Index of the keys of this worker's examples."""
    owned: BatchIndex
    """Index of the keys of the batch that this worker owns."""

    def fetch(self, weights_PC: F32) -> F32:
        """Return the weights of the keys of this worker's examples. `weights_PC`: weights of the rows that it owns."""

    def push_gradients(self, sums_PC: F32) -> F32:
        """Return the gradients of the rows that this worker owns, summed over the whole batch. `sums_PC`: gradients
        from this worker's examples."""

    def share_of(self, loss: Tensor, weight: Tensor) -> Tensor:
        """Scale this worker's mean loss to its share of the whole batch's mean. `weight`: total weight of its examples.
        With `data.tasks` both have a value for each label [T]."""

    def widths(self, widths_F: I32) -> I32:
        """Return the number of weights that the field of each owned key uses [P], given that of each field."""

    def counts(self, rows: RowOptimizer) -> tuple[I32, I32]:
        """Return the counts of each owned key in the whole batch: occurrences, as differences of a cumulative array [P
        + 1], and the number of examples that contain it [P]."""


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

    def widths(self, widths_F: I32) -> I32:
        return widths_of_keys(self.index, widths_F)

    def counts(self, rows: RowOptimizer) -> tuple[I32, I32]:
        return self.index.starts_P, rows.examples_with_key(self.index, self._num_fields)


def widths_of_keys(index: BatchIndex, widths_F: I32) -> I32:
    """[P] width of the field in which each unique key first occurs. All fields of a table have the same width."""
    return widths_F[index.source_V[index.starts_P[:-1]] % len(widths_F)]


class SharedBatch:
    def __init__(
        self, index: BatchIndex, row_requests: RowRequests, weights: Sequence[float], exchange: Exchange
    ) -> None:
        """`row_requests`: requests of all workers for the rows that this worker owns. `weights`: total weight of the
        whole batch's examples; with `data.tasks`, of the examples that have each label."""
        self.index, self.owned = index, row_requests.index
        self._row_requests, self._weights, self._exchange = row_requests, weights, exchange

    def fetch(self, weights_PC: F32) -> F32:
        return self._exchange.fetch(weights_PC, self._row_requests, self.index)

    def push_gradients(self, sums_PC: F32) -> F32:
        return self._exchange.push_gradients(sums_PC, self._row_requests, self.index)

    def share_of(self, loss: Tensor, weight: Tensor) -> Tensor:
        if loss.ndim == 0:
            return loss * (weight / max(self._weights[0], TINY))
        whole = torch.tensor(self._weights, dtype=loss.dtype, device=loss.device)
        return loss * (weight / whole.clamp_min(TINY))

    def widths(self, widths_F: I32) -> I32:
        return self._exchange.send_widths(widths_of_keys(self.index, widths_F), self._row_requests, self.index)

    def counts(self, rows: RowOptimizer) -> tuple[I32, I32]:
        starts_P = self._row_requests.starts_P
        occurrences_P = array_library(starts_P).diff(starts_P)
        return starts_P, self._row_requests.examples_with_key_P if rows.counts_examples else occurrences_P


def clear_unused(rows: RowOptimizer, rows_P: I32, share: BatchShare, widths_F: I32 | None) -> None:
    """In the new rows among the batch's owned rows, set the weights that their fields do not use to zero (see
    `widths`)."""
    if widths_F is not None:
        rows.clear_unused(rows_P, share.widths(widths_F))


def norm_of_all(rows: Tensor, group: Group | None) -> Tensor:
    """Return a tensor with the same norm as the row gradients of the whole batch: for one worker `rows` itself; for
    several, the norm over the rows of all workers."""
    if group is None:
        return rows
    square = torch.linalg.vector_norm(rows).double().reshape(1) ** 2
    group.all_reduce(square, "agreement")
    return square.sqrt().float()
