"""Replacement for the part of CuPy that `pipeline.device.gpu.Gpu` calls: in RAM, and synchronous. Tests on a GPU use
CuPy itself."""

import ctypes
import itertools
from types import SimpleNamespace
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np


class Array(np.ndarray):
    """Array with its address in the attribute where CuPy has it."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class Stream:
    pointers = itertools.count(1)
    made: ClassVar = WeakValueDictionary()
    """Streams by pointer."""

    def __init__(self, non_blocking):
        assert non_blocking, "it would wait for the default stream"
        self.ptr, self.log, self.entered = next(self.pointers), [], 0
        self.made[self.ptr] = self

    def __enter__(self):
        self.entered += 1

    def __exit__(self, *error):
        self.entered -= 1

    def wait_event(self, event):
        self.log.append(event)

    def synchronize(self):
        pass


class Event:
    moments = itertools.count()

    def __init__(self, block):
        assert block, "a waiting thread would keep its core busy"
        self.waited = False

    def record(self, stream):
        self.at = next(self.moments)

    def synchronize(self):
        self.waited = True


def make():
    """Make modules that replace cupy and cupyx."""
    calls = []

    def memcpy(to, source, num_bytes, kind, stream):
        calls.append((num_bytes, stream))
        ctypes.memmove(to, source, num_bytes)

    def pinned_memory(num_bytes):
        calls.append(num_bytes)
        return (ctypes.c_uint8 * num_bytes)()

    runtime = SimpleNamespace(
        memcpyAsync=memcpy, memcpyDefault=4, memGetInfo=lambda: (123, 456),
        getDeviceProperties=lambda number: {"name": b"Some GPU"},
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, Stream=Stream, Event=Event, Device=lambda: SimpleNamespace(id=0, pci_bus_id="0000:01:00.0"),
        get_current_stream=lambda: Stream(True), get_elapsed_time=lambda begin, end: float(end.at - begin.at),
        PinnedMemory=pinned_memory, is_available=lambda: True,
        PinnedMemoryPointer=lambda memory, offset: memory,
    )  # fmt: skip
    pool = SimpleNamespace(free_all_blocks=lambda: calls.append("freed"))
    cupy = SimpleNamespace(
        cuda=cuda, calls=calls, empty=lambda shape, dtype: np.empty(shape, dtype).view(Array),
        asarray=lambda array: array.copy().view(Array), from_dlpack=lambda tensor: tensor.numpy().view(Array),
        get_default_memory_pool=lambda: pool,
    )  # fmt: skip
    cupyx = SimpleNamespace(empty_pinned=lambda shape, dtype: np.empty(shape, dtype))
    return cupy, cupyx
