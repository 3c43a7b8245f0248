"""Where the device tier is: in RAM, or in the memory of a GPU. The streams that work is given to, and their events.

A stage gives work to a stream and goes on. A stream does its work in the order in which it was given; between streams
nothing is ordered but by events. What is computed in RAM is done at once, so there all of this is nothing.

On a GPU there are five streams: `unique` (dedup), `keys` (unique keys on their way to `plan`), `up` (arrivals), `train`
(the swap and the steps), `down` (victims on their way to the host). DESIGN.md says which event each of them waits for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from pipeline.kernels.launch import on_stream
from pipeline.memory import aligned_empty
from pipeline.records import DONE, Array, Event, Span

STREAMS = ("unique", "keys", "up", "train", "down")
POOLED_BYTES = 1 << 26
"""Pinned memory of at most this size comes from CuPy's pool, which gives twice what is asked for and keeps it."""


class Stream(Protocol):
    pointer: int
    """A cudaStream_t; 0 where there is none."""

    def run(self, work: Callable[..., None], *args: Any) -> None:
        """Have `work(*args)` done, which itself waits for nothing on a GPU."""

    def copy(self, source: Any, into: Any) -> None:
        """Copy between arrays of the same size in bytes, one in host memory (`pinned`) and one on the device."""

    def record(self) -> Event: ...

    def after(self, event: Event) -> None:
        """What this stream is given from now on is done after the event, of whichever stream."""


class Device(Protocol):
    name: str
    """"cpu" or "cuda"."""
    model: str
    """Which one: with another, other bits may come of the same workflow."""
    on_gpu: bool
    unique: Stream
    keys: Stream
    up: Stream
    train: Stream
    down: Stream

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Memory of the device. MemoryError: there is not so much."""

    def pinned(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Host memory, a NumPy array, that streams copy from and to."""

    def there(self, array: Any) -> Any:
        """A copy of a host array on the device, made before this returns."""

    def array(self, tensor: Any) -> Any:
        """The device's array over the memory of a torch tensor that needs no gradient."""

    def free_bytes(self) -> int:
        """Memory of the device that nobody has taken."""

    def give_back(self) -> None:
        """Let others have the memory that no array holds any more. Nothing is under way."""

    def timed(self, name: str, number: int, stream: Stream) -> Any:
        """A context: when what the stream is given within it was done will be among `drain`'s spans."""

    def drain(self) -> list[Span]:
        """Wait for all streams; when timed work was done, on `time.perf_counter`'s clock."""


class Inline:
    """The stream of what is computed in RAM."""

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
    """The device tier is a slab of RAM."""

    name = model = "cpu"
    on_gpu = False

    def __init__(self) -> None:
        inline: Stream = Inline()
        self.unique = self.keys = self.up = self.train = self.down = inline

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        return aligned_empty(shape, dtype)

    pinned = empty

    def there(self, array: Any) -> Any:
        return array

    def array(self, tensor: Any) -> Array:
        return tensor.numpy()

    def free_bytes(self) -> int:
        return available_ram()

    def give_back(self) -> None:
        pass

    @contextmanager
    def timed(self, name: str, number: int, stream: Stream) -> Iterator[None]:
        yield

    def drain(self) -> list[Span]:
        return []


RAM = Ram()


class GpuEvent:
    def __init__(self, cupy: Any, stream: Any) -> None:
        # Blocking: a thread that waits leaves its core to the other stages.
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
        assert source.nbytes == into.nbytes
        if source.nbytes:
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(_address(into), _address(source), source.nbytes, runtime.memcpyDefault, self.pointer)

    def record(self) -> Event:
        return GpuEvent(self._cupy, self._stream)

    def after(self, event: Any) -> None:
        if event is not DONE:
            self._stream.wait_event(event.event)


class Gpu:
    """The device tier is in the memory of the first visible GPU."""

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

    def there(self, array: Any) -> Any:
        copy = self._cupy.asarray(array)
        self._cupy.cuda.get_current_stream().synchronize()
        return copy

    def array(self, tensor: Any) -> Any:
        return self._cupy.from_dlpack(tensor)

    def free_bytes(self) -> int:
        return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def give_back(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()

    @contextmanager
    def timed(self, name: str, number: int, stream: Stream) -> Iterator[None]:
        begin = stream.record()
        yield
        self._timed.append((f"gpu {name}", number, begin, stream.record()))

    def drain(self) -> list[Span]:
        for name in STREAMS:
            getattr(self, name).record().wait()
        timed, self._timed = self._timed, []
        return [Span(name, number, self._at(begin), self._at(end), 0.0) for name, number, begin, end in timed]

    def _at(self, event: Any) -> float:
        began: Any = self._began
        return self._began_at + float(self._cupy.cuda.get_elapsed_time(began.event, event.event)) / 1000


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def available_ram() -> int:
    """Bytes that this machine can give without taking from others."""
    with open("/proc/meminfo") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def choose(name: str) -> Device:
    """The device that a workflow asks for; ValueError if this machine has none."""
    why = "" if name == "cpu" else _why_no_gpu()
    if name == "cuda" and why:
        raise ValueError(f"device is cuda, and there is none: {why}; set device to cpu or auto")
    return RAM if name == "cpu" or why else Gpu()


def _why_no_gpu() -> str:
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); install the extra gpu"
    return "" if cupy.cuda.is_available() else "CuPy sees no CUDA device"
