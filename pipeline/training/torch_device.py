"""Use of torch on the training device: its stream, memory and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from pipeline.device.device import Device, make_deterministic, torch_device


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
