"""Where the device tier is: in RAM, or in the memory of a GPU. The streams that work is given to, and their events.

A stage gives work to a stream and goes on. A stream does its work in the order in which it was given; between streams
nothing is ordered but by events. What is computed in RAM is done at once, so there all of this is nothing.

On a GPU there are five streams: `unique` (dedup), `keys` (unique keys on their way to `plan`), `up` (arrivals), `train`
(the swap and the steps), `down` (victims on their way to the host). DESIGN.md says which event each of them waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from pipeline.machine import limits
from pipeline.machine.memory import aligned_empty
from pipeline.records import DONE, Array, Event, Span

STREAMS = ("unique", "keys", "up", "train", "down")


class Stream(Protocol):
    pointer: int
    """A cudaStream_t; 0 where there is none."""

    def run(self, work: Callable[..., None], *args: Any) -> None:
        """Have `work(*args)` done, which itself waits for nothing on a GPU."""

    def copy(self, source: Any, into: Any) -> None:
        """Copy between arrays of the same size in bytes, one in host memory (`pinned`) and one on the device."""

    def record(self) -> Event: ...

    def after(self, event: Event) -> None:
        """Have what this stream is given from now on done after the event, of whichever stream."""


class Described(Protocol):
    """A description of a device, for everything that is decided before a run."""

    on_gpu: bool

    def free_bytes(self) -> int:
        """Memory of the device that nobody has taken."""


class Device(Described, Protocol):
    name: str
    """"cpu" or "cuda"."""
    model: str
    """Which one: with another, other bits may come of the same workflow."""
    unique: Stream
    keys: Stream
    up: Stream
    train: Stream
    down: Stream

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Memory of the device. MemoryError: there is not so much."""

    def pinned(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Host memory, a NumPy array, that streams copy from and to."""

    def to_device(self, array: Any) -> Any:
        """A host array as the device reaches it: a copy, made before this returns, or in RAM the array itself."""

    def array(self, tensor: Any) -> Any:
        """The device's array over the memory of a torch tensor that needs no gradient."""

    def release_memory(self) -> None:
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

    def drain(self) -> list[Span]:
        return []


RAM = Ram()
