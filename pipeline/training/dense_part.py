"""The dense part with its optimizer and its averages, as used by commits, fingerprints and evaluations."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipeline.optim.dense import Dense
from pipeline.optim.kstep import KStepDense
from pipeline.records import Array
from pipeline.training.dense_state import dense_state, load_dense, model_state, save_dense
from pipeline.training.torch_device import TorchDevice


class DensePart:
    """A model and its optimizer. If its weights are averaged, the parameters hold the averages while blocks are
    scored, and the plain weights for everything else."""

    def __init__(self, model: torch.nn.Module, dense: Dense | KStepDense, device: TorchDevice) -> None:
        self._model, self._dense, self._device = model, dense, device

    def show(self, averaged: bool) -> None:
        """Make the parameters hold the averages, if there are any, or the plain weights."""
        if self._dense.average:
            self._dense.average.show(averaged)

    def save(self) -> dict[str, Array]:
        """Return everything that a commit stores, in the form that `load` reads."""
        with self._device.stream():
            self.show(averaged=False)
            return save_dense(self._model, self._dense.optimizer, self._dense.average)

    def load(self, saved: Mapping[str, Array]) -> None:
        """Load what `save` returned. Raises ValueError if it belongs to another model."""
        with self._device.stream():
            load_dense(self._model, self._dense.optimizer, saved, self._dense.average)

    def state(self) -> list[tuple[str, Array]]:
        """Names and values of everything learned, for a fingerprint."""
        with self._device.stream():
            self.show(averaged=False)
            return dense_state(self._model, self._dense.optimizer, self._dense.average)

    def scoring_state(self) -> dict[str, Array]:
        """Parameters and buffers used to score blocks, by name."""
        with self._device.stream():
            self.show(averaged=True)
            return model_state(self._model)
