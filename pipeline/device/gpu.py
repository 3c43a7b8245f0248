"""The GPU as the device, through CuPy, the choice of a workflow's device, and the GPUs according to NVIDIA's management
library (NVML). Only this module imports `pynvml`, which comes with dask-cuda."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.device.device import RAM, STREAMS, Device, Stream
from pipeline.kernels.launch import on_stream
from pipeline.records import DONE, Event, StageCall


@dataclass(frozen=True, slots=True)
class GpuInfo:
    index: int
    """Number of the GPU in NVML."""
    uuid: str
    """Name of the GPU for CUDA_VISIBLE_DEVICES. Numbers would be ambiguous, since CUDA and NVML order GPUs
    differently."""
    free_bytes: int | None = None
    """Free bytes of GPU memory; None if unknown."""


def read_gpus() -> list[GpuInfo]:
    """Return the GPUs of this machine that CUDA_VISIBLE_DEVICES selects, by number."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = [_found(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [gpu for gpu in found if _is_visible(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _found(nvml: Any, index: int) -> GpuInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        free_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except nvml.NVMLError:
        free_bytes = None
    return GpuInfo(index, nvml.nvmlDeviceGetUUID(handle), free_bytes)


def _is_visible(found: GpuInfo, visible: str | None) -> bool:
    """True if `visible` names the GPU, by number or by a prefix of its UUID, as CUDA permits."""
    names = [] if visible is None else [name.strip() for name in visible.split(",")]
    return visible is None or any(n == str(found.index) or (n and found.uuid.startswith(n)) for n in names)


POOLED_BYTES = 1 << 26
"""Maximum size of pinned memory taken from CuPy's pool, which allocates up to twice the requested size and keeps it."""


class GpuEvent:
    def __init__(self, cupy: Any, stream: Any) -> None:
        # A blocking event: a waiting thread leaves its core to the other stages.
        self.event = cupy.cuda.Event(block=True)
        self.event.record(stream)

    def wait(self) -> None:
        self.event.synchronize()


class GpuStream:
    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.pointer = int(self._stream.ptr)

    def run(self, work: Callable[..., None], *args: Any) -> None:
        with self._stream, on_stream(self.pointer):
            work(*args)

    def copy(self, source: Any, into: Any) -> None:
        if source.nbytes != into.nbytes:
            raise ValueError(f"a copy of {source.nbytes} bytes to memory of {into.nbytes}")
        if source.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(_address(into), _address(source), source.nbytes, runtime.memcpyDefault, self.pointer)

    def record(self) -> Event:
        return GpuEvent(self._cupy, self._stream)

    def after(self, event: Any) -> None:
        if event is not DONE:
            self._stream.wait_event(event.event)


class Gpu:
    """The first visible GPU as the device."""

    name, on_gpu = "cuda", True

    def __init__(self) -> None:
        import cupy
        import cupyx

        self._cupy, self._cupyx = cupy, cupyx
        self.model = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        streams: list[Stream] = [GpuStream(cupy) for _ in STREAMS]
        self.unique, self.keys, self.up, self.train, self.down = streams
        self._timed: list[tuple[str, int, Any, Any]] = []
        self._began, self._began_at = self.train.record(), time.perf_counter()

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        return self._cupy.empty(shape, dtype)

    def pinned(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        shape = (shape,) if isinstance(shape, int) else shape
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if num_bytes <= POOLED_BYTES:
            return self._cupyx.empty_pinned(shape, dtype)
        memory = self._cupy.cuda.PinnedMemory(num_bytes)
        return np.ndarray(shape, dtype, buffer=self._cupy.cuda.PinnedMemoryPointer(memory, 0))

    def to_device(self, array: Any) -> Any:
        copy = self._cupy.asarray(array)
        self._cupy.cuda.get_current_stream().synchronize()
        return copy

    def array(self, tensor: Any) -> Any:
        return self._cupy.from_dlpack(tensor)

    def free_bytes(self) -> int:
        return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def release_memory(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()

    @contextmanager
    def timed(self, name: str, number: int, stream: Stream) -> Iterator[None]:
        begin = stream.record()
        yield
        self._timed.append((f"gpu {name}", number, begin, stream.record()))

    def drain(self) -> list[StageCall]:
        for name in STREAMS:
            getattr(self, name).record().wait()
        timed, self._timed = self._timed, []
        return [StageCall(name, number, self._at(begin), self._at(end), 0.0) for name, number, begin, end in timed]

    def _at(self, event: Any) -> float:
        began: Any = self._began
        return self._began_at + float(self._cupy.cuda.get_elapsed_time(began.event, event.event)) / 1000


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def choose(name: str) -> Device:
    """Return the device that a workflow requests. Raises ValueError if this machine does not have it."""
    return Gpu() if gets_gpu(name) else RAM


def gets_gpu(name: str) -> bool:
    """Return True if the workflow's device is a GPU. Raises ValueError if a GPU is required but none is usable."""
    why = "" if name == "cpu" else _why_no_gpu()
    if name == "cuda" and why:
        raise ValueError(f"device is cuda, but no GPU is usable: {why}; set device to cpu or auto")
    return not (name == "cpu" or why)


def identify(name: str) -> tuple[str, str]:
    """Return the model of the workflow's device and, for a GPU, its PCI address; ("cpu", "") if no GPU is usable."""
    if name == "cpu" or _why_no_gpu():
        return "cpu", ""
    import cupy

    device = cupy.cuda.Device()
    return cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode(), device.pci_bus_id


@dataclass(frozen=True, slots=True)
class GpusOfWorkers:
    """GPUs that only other processes use. This process does not initialize them, because that would take some of their
    memory."""

    free: int
    """Number of free bytes of the GPU that has the fewest."""
    on_gpu = True

    def free_bytes(self) -> int:
        return self.free


def _why_no_gpu() -> str:
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); install the extra gpu"
    return "" if cupy.cuda.is_available() else "CuPy sees no CUDA device"
