"""Exchange of rows and gradients. Rows go from their owners to the workers that need them, and gradients go back. Only
unique keys are sent, each once per worker and batch.

`dedup` and `unite` have already decided what is sent to whom; no key is looked up here.
"""

from __future__ import annotations

import numpy as np

from pipeline.comm.group import Group
from pipeline.device.device import Device, tensor_of
from pipeline.kernels.rows import gather_rows
from pipeline.kernels.segment_sum import segment_sum
from pipeline.machine.threads import Threads, Whole
from pipeline.records import F32, I32, BatchIndex, RowRequests

ONE_TILE = 1 << 30
"""Tile size that puts all requests for a key into one tile, so that gradients are always summed in rank order, whatever
other keys an owner has."""


class Exchange:
    """Exchange of the C weights of a row and of their gradients. The arrays are reused for every batch and grow as
    needed."""

    def __init__(self, group: Group, num_weights: int, threads: Threads | Whole, device: Device) -> None:
        self._group, self._threads, self._device = group, threads, device
        self._num_weights = num_weights
        self._sent_RC = self._wanted_PC = self._sums_QC = self._empty(0)
        self._none: F32 = self._empty(0).reshape(-1)

    def fetch(self, weights_QC: F32, row_requests: RowRequests, index: BatchIndex) -> F32:
        """Return the weights [P, C] of this worker's unique keys. `weights_QC`: weights of the keys that it owns. The
        result is valid until the next call."""
        num_wanted = sum(index.parts_W)
        if len(self._wanted_PC) < num_wanted:
            self._wanted_PC = self._empty(num_wanted + num_wanted // 2)
        sent_RC, wanted_PC = self._sent(row_requests), self._wanted_PC[:num_wanted]
        words_QC, words_RC, at_R = weights_QC.view(np.uint32), sent_RC.view(np.uint32), row_requests.index.inverse_V
        self._threads.split(len(at_R), lambda a, b: gather_rows(words_QC, at_R[a:b], words_RC[a:b]))
        self._group.all_to_all(tensor_of(sent_RC), row_requests.parts_W, tensor_of(wanted_PC), index.parts_W, "rows")
        return wanted_PC

    def push_gradients(self, sums_PC: F32, row_requests: RowRequests, index: BatchIndex) -> F32:
        """Return the gradients [Q, C] of the keys that this worker owns, summed in rank order. `sums_PC`: gradients of
        its part of the batch. The result is valid until the next call."""
        received_RC, num_owned = self._sent(row_requests), len(row_requests.index.unique_P)
        self._group.all_to_all(
            tensor_of(sums_PC), index.parts_W, tensor_of(received_RC), row_requests.parts_W, "gradients"
        )
        if len(self._sums_QC) < num_owned:
            self._sums_QC = self._empty(num_owned + num_owned // 2)
        sums_QC, owned = self._sums_QC[:num_owned], row_requests.index
        self._threads.split(
            num_owned,
            lambda a, b: segment_sum(
                received_RC, self._none, owned.source_V, owned.starts_P[a : b + 1], self._none, ONE_TILE, sums_QC[a:b]
            ),
        )
        return sums_QC

    def send_widths(self, widths_P: I32, row_requests: RowRequests, index: BatchIndex) -> I32:
        """Return the widths [Q] of the keys that this worker owns. `widths_P`: widths of the keys of its part of the
        batch."""
        received_R: I32 = self._device.empty(sum(row_requests.parts_W), np.int32)
        self._group.all_to_all(tensor_of(widths_P), index.parts_W, tensor_of(received_R), row_requests.parts_W, "rows")
        owned = row_requests.index
        return received_R[owned.source_V[owned.starts_P[:-1]]]

    def _sent(self, row_requests: RowRequests) -> F32:
        num_requests = sum(row_requests.parts_W)
        if len(self._sent_RC) < num_requests:
            self._sent_RC = self._empty(num_requests + num_requests // 2)
        return self._sent_RC[:num_requests]

    def _empty(self, num_rows: int) -> F32:
        empty_RC: F32 = self._device.empty((num_rows, self._num_weights), np.float32)
        return empty_RC
