"""Lazy Adam on the rows of a batch, in the device slab."""

from __future__ import annotations

import numpy as np

from pipeline.kernels.adam import adam_rows, step_size
from pipeline.optimizer import Adam
from pipeline.records import F32, I32
from pipeline.storage.slab import Slab
from pipeline.threads import Threads, Whole


class RowAdam:
    """Updates weights, m and v of a row in one pass, where the row lies."""

    def __init__(self, adam: Adam, device: Slab, threads: Threads | Whole) -> None:
        self._threads = threads
        self._adam = adam
        self._device = device

    def update(self, rows_P: I32, grads_PC: F32, starts_P: I32, step: int) -> None:
        """One step, counted from 1, for the rows `rows_P` with summed gradients [P, C]."""
        adam = self._adam
        rates = np.float32(1 - adam.beta1), np.float32(1 - adam.beta2)
        size = step_size(adam.lr, adam.beta1, adam.beta2, step)
        floats_SW, words_SW = self._device.floats_SW, self._device.words_SW
        self._threads.split(
            len(rows_P),
            lambda a, b: adam_rows(
                floats_SW, words_SW, rows_P[a:b], grads_PC[a:b], starts_P[a : b + 1], step, *rates,
                np.float32(adam.eps), size,
            ),
        )  # fmt: skip
