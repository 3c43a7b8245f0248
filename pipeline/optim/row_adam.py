"""Lazy Adam on the rows of a batch, in the device slab."""

from __future__ import annotations

import numpy as np

from pipeline.kernels.adam import adam_rows, step_size
from pipeline.records import F32, I32
from pipeline.storage.slab import Slab
from pipeline.workflow import Adam


class RowAdam:
    """Updates weights, m and v of a row in one pass, where the row lies."""

    def __init__(self, adam: Adam, device: Slab) -> None:
        self._adam = adam
        self._device = device

    def update(self, rows_P: I32, grads_PC: F32, starts_P: I32, step: int) -> None:
        """One step, counted from 1, for the rows `rows_P` with summed gradients [P, C]."""
        a = self._adam
        adam_rows(
            self._device.floats_SW, self._device.words_SW, rows_P, grads_PC, starts_P, step, np.float32(1 - a.beta1),
            np.float32(1 - a.beta2), np.float32(a.eps), step_size(a.lr, a.beta1, a.beta2, step),
        )  # fmt: skip
