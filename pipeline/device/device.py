"""Device that holds the device tier: RAM or a GPU, with the streams that run its work and their events.

A stage enqueues work on a stream and continues. A stream runs its work in order; only events order work on different
streams. In RAM each call is complete when it returns, so streams and events do nothing.

A GPU has five streams: `unique` (dedup), `keys` (unique keys on their way to `plan`), `up` (arrivals), `train` (the
swap and the steps) and `down` (victims on their way to the host). DESIGN.md lists the events that each waits for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.machine import limits
from pipeline.machine.limits import aligned_empty
from pipeline.records import DONE, Array, Event, StageCall


def torch_device(device: Device) -> torch.device:
    return torch.device("cuda" if device.name == "cuda" else "cpu")


def tensor_of(array: Any) -> Tensor:
    """Wrap the memory of a NumPy or CuPy array as a tensor."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def make_deterministic() -> None:
    """Make torch use deterministic algorithms on a GPU, and reject operations that have none."""
    # cuBLAS chooses an algorithm by its free workspace; it reads this variable at its first use.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Uninitialized memory is always overwritten before it is read here, so filling it would waste time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


STREAMS = ("unique", "keys", "up", "train", "down")


class Stream(Protocol):
    pointer: int
    """The cudaStream_t; 0 in RAM."""

    def run(self, work: Callable[..., None], *args: Any) -> None:
        """Enqueue the kernels of `work(*args)`, which must not wait for the GPU."""

    def copy(self, source: Any, into: Any) -> None:
        """Enqueue a copy between two arrays of equal size in bytes: one in `pinned` host memory, one on the device."""

    def record(self) -> Event: ...

    def after(self, event: Event) -> None:
        """Make all work enqueued later on this stream wait for the event, which may belong to any stream."""


class Described(Protocol):
    """Properties of a device that are needed before a run."""

    on_gpu: bool

    def free_bytes(self) -> int:
        """Number of free bytes of device memory."""


class Device(Described, Protocol):
    name: str
    """"cpu" or "cuda"."""
    model: str
    """Model name of the hardware. A different model may give different bits for the same workflow."""
    unique: Stream
    keys: Stream
    up: Stream
    train: Stream
    down: Stream

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Allocate an uninitialized array in the device's memory. Raises MemoryError if there is too little."""

    def pinned(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Allocate a NumPy array in host memory that streams can copy from and to."""

    def to_device(self, array: Any) -> Any:
        """Return a copy of a host array in the device's memory, complete on return; in RAM the array itself."""

    def array(self, tensor: Any) -> Any:
        """Wrap the memory of a torch tensor without gradient as an array of the device."""

    def release_memory(self) -> None:
        """Release unused memory to the system. No work may be in progress."""

    def timed(self, name: str, number: int, stream: Stream) -> Any:
        """Context that times the work enqueued on the stream inside it; `drain` returns the call."""

    def drain(self) -> list[StageCall]:
        """Wait for all streams and return the calls of timed work, on `time.perf_counter`'s clock."""


class Inline:
    """Stream of RAM: work is done during the call."""

    pointer = 0

    def run(self, work: Callable[..., None], *args: Any) -> None:
        work(*args)

    def copy(self, source: Any, into: Any) -> None:
        if source.ctypes.data != into.ctypes.data:
            into.reshape(-1).view(np.uint8)[:] = source.reshape(-1).view(np.uint8)

    def record(self) -> Event:
        return DONE

    def after(self, event: Event) -> None:
        pass


class Ram:
    """RAM as the device."""

    name = model = "cpu"
    on_gpu = False

    def __init__(self) -> None:
        inline: Stream = Inline()
        self.unique = self.keys = self.up = self.train = self.down = inline

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        return aligned_empty(shape, dtype)

    pinned = empty

    def to_device(self, array: Any) -> Any:
        return array

    def array(self, tensor: Any) -> Array:
        return tensor.numpy()

    def free_bytes(self) -> int:
        return limits.free_memory()

    def release_memory(self) -> None:
        pass

    @contextmanager
    def timed(self, name: str, number: int, stream: Stream) -> Iterator[None]:
        yield

    def drain(self) -> list[StageCall]:
        return []


RAM = Ram()
