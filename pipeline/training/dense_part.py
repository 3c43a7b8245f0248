"""The dense part with its optimizer and its averages, as used by commits, fingerprints and evaluations; and
the use of torch on the training device: its stream, memory and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from pipeline.device.device import Device, make_deterministic, torch_device
from pipeline.optim.dense import Dense
from pipeline.optim.kstep import KStepDense
from pipeline.records import Array
from pipeline.training.dense_state import dense_state, load_dense, model_state, save_dense


class TorchDevice:
    """Runs torch work on the device. On a GPU, `run` enqueues the work on the device's stream `train` and does not
    wait."""

    def __init__(self, device: Device) -> None:
        self._device, self.where = device, torch_device(device)
        self._stream: torch.cuda.Stream | None = None
        self.generator = torch.random.default_generator
        if self.where.type == "cuda":
            make_deterministic()
            self._stream = torch.cuda.ExternalStream(device.train.pointer)
            self.generator = torch.cuda.default_generators[torch.cuda.current_device()]

    def run(self, work: Callable[..., object], *args: object) -> None:
        self._device.train.run(self._with_torch, work, *args)

    def _with_torch(self, work: Callable[..., object], *args: object) -> None:
        with self.stream():
            work(*args)

    def stream(self) -> AbstractContextManager[object]:
        """Context in which the stream is torch's current stream. Without it, allocations would not be ordered with the
        steps."""
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def zeros(self, *shape: int) -> Tensor:
        with self.stream():
            return torch.zeros(shape, device=self.where)

    def to_host(self, results: list[Tensor]) -> list[Tensor]:
        """Start copies to the host. They are complete when all work enqueued so far is done."""
        on_host = [torch.empty(result.shape, pin_memory=self._stream is not None) for result in results]
        for result, here in zip(results, on_host, strict=True):
            self.run(here.copy_, result, True)
        return on_host


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
