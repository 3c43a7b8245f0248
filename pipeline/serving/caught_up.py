"""Rows as an evaluation reads them: caught up to a step, with first rows for keys that were never trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.device.device import RAM
from pipeline.machine.threads import Whole
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.optim.slab_rows import WideRows
from pipeline.records import F32, U32, U64, Array
from pipeline.serving.features import Features
from pipeline.settings.optimizer import Optimizer
from pipeline.storage.layout import WEIGHTS_AT, RowLayout
from pipeline.storage.tier import Slab, widened, write_first_rows

Known = NDArray[np.bool_]
"""[U] True for each key that has a row."""


class RowReader(Protocol):
    """Source of row weights. Thread-safe."""

    def weights(self, keys_U: U64, weights_UC: F32) -> Known:
        """Write the weights of distinct keys; a key without a row gets the weights of its first row. Raises Damaged if
        a row is damaged."""

    def close(self) -> None: ...


class CaughtUp:
    """Catch-up of rows to a step, and first rows of keys, as in an evaluation after that step."""

    def __init__(
        self, optimizer: Optimizer, layout: RowLayout, features: Features, saved: Mapping[str, Array], step: int
    ) -> None:
        """`saved`: the dense part of the commit, which contains the history of learning rates. Raises ValueError if the
        history ends before `step`."""
        no_rows = WideRows(Slab(0, layout.wide.num_words), layout.wide)
        self._rows = RowOptimizer(optimizer, no_rows, features.init_std, Whole(), RAM, repeats_keys=False)
        self._rows.rates.load(saved)
        if self._rows.catches_up and step > self._rows.rates.num_steps:
            raise ValueError(
                f"rows are to be caught up to step {step}, and the history of rates ends at step "
                f"{self._rows.rates.num_steps}: it is not that of the rows; export the servable again"
            )
        self._layout, self._features, self._step = layout, features, step
        # The first call computes the lifespan of first rows; later calls change nothing but their rows.
        self.catch_up(np.zeros((1, layout.num_words), np.uint32))

    def catch_up(self, rows_UW: U32) -> F32:
        """[U, C] caught-up weights of rows. The rows may be overwritten."""
        wide_UX = widened(self._layout, rows_UW)
        self._rows.catch_up_copy(wide_UX, self._step)
        weights_UC: F32 = wide_UX.view(np.float32)[:, WEIGHTS_AT : WEIGHTS_AT + self._layout.num_weights]
        return weights_UC

    def first_rows(self, keys_U: U64) -> U32:
        """[U, W] first rows of these keys, not caught up."""
        rows_UW = np.empty((len(keys_U), self._layout.num_words), np.uint32)
        write_first_rows(self._layout, self._features.seed, self._features.init_std, keys_U, rows_UW)
        return rows_UW
