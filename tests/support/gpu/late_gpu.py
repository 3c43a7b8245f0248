"""A simulated GPU whose streams do their work as late as possible, in any order that its events allow.

On a real GPU, work that is not ordered by an event or a wait may occasionally run in the wrong order; here it does so
in every run.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace

import numpy as np

from pipeline.device.device import STREAMS
from pipeline.records import StageCall

GARBAGE = 0xFF
"""Byte that fills new and released memory: NaN as a float, invalid as an index."""


class There(np.ndarray):
    """Array in GPU memory; kernels distinguish it from a host array by its type."""


class Memory:
    """Memory that is overwritten as soon as none of its arrays is referenced, even if streams still have work that uses
    it."""

    def __init__(self, num_bytes, keep, live):
        if num_bytes < 0:
            raise ValueError(f"memory of {num_bytes} bytes")
        raw = (ctypes.c_uint8 * max(1, num_bytes))()
        ctypes.memset(raw, GARBAGE, num_bytes)
        keep.append(raw)
        live[0] += num_bytes
        self.__array_interface__ = {
            "shape": (num_bytes,), "typestr": "|u1", "data": (ctypes.addressof(raw), False), "version": 3
        }  # fmt: skip
        weakref.finalize(self, release_memory, raw, num_bytes, live)


def release_memory(raw, num_bytes, live):
    ctypes.memset(raw, GARBAGE, num_bytes)
    live[0] -= num_bytes


class At:
    """Reference to an array by its address only."""

    def __init__(self, array):
        self.__array_interface__ = {**array.__array_interface__, "strides": array.strides}


def borrowed(value):
    """The same value, with device arrays replaced by views that do not keep the memory alive."""
    if isinstance(value, There):
        return np.asarray(At(value)).view(There)
    if isinstance(value, tuple):
        return tuple(map(borrowed, value))
    if is_dataclass(value):
        return replace(value, **{field.name: borrowed(getattr(value, field.name)) for field in fields(value)})
    return value


class LateEvent:
    def __init__(self, stream):
        self.stream, self.done = stream, False

    def wait(self):
        if ("host", self.stream.name) not in self.stream.gpu.left_out:
            self.stream.gpu.finish(self)


class LateStream:
    pointer = 0

    def __init__(self, gpu, name):
        self.gpu, self.name = gpu, name
        self.todo = deque()

    def run(self, work, *args):
        args = [borrowed(arg) for arg in args]
        self._give(lambda: work(*args))

    def copy(self, source, into):
        assert isinstance(source, There) != isinstance(into, There), "a copy is between host and device"
        assert source.nbytes == into.nbytes
        host = into if isinstance(source, There) else source
        assert self.gpu.is_pinned(host), "the GPU would wait for a copy of memory that is not pinned"
        # By address: like all pending work, the copy keeps no memory alive.
        self._give(lambda a=into.ctypes.data, b=source.ctypes.data, n=source.nbytes: ctypes.memmove(a, b, n))

    def record(self):
        event = LateEvent(self)
        self._give(lambda: setattr(event, "done", True))
        return event

    def after(self, event):
        if isinstance(event, LateEvent) and (self.name, event.stream.name) not in self.gpu.left_out:
            self._give(event)

    def _give(self, what):
        with self.gpu.lock:
            self.todo.append(what)
            self.gpu.go_on()


class LateGpu:
    """The simulated GPU. `eager`: streams that run ahead as far as events allow. `seed`: if given, streams make random
    progress. `left_out`: pairs (waiting stream, stream of the event) whose waits are skipped; "host" as the first one
    means a wait of the host."""

    name, model, on_gpu = "simulated", "simulated", True

    def __init__(self, eager=(), seed=None, left_out=()):
        self.lock = threading.RLock()
        self.streams = [LateStream(self, name) for name in STREAMS]
        self.unique, self.keys, self.up, self.train, self.down = self.streams
        self.left_out = set(left_out)
        self._eager = eager
        self._random = None if seed is None else np.random.default_rng(seed)
        self._memory, self._pinned = [], []
        self._live, self._live_pinned = [0], [0]
        self._timed = []
        self.error = None

    def empty(self, shape, dtype):
        num_bytes = math.prod((shape,) if isinstance(shape, int) else shape) * np.dtype(dtype).itemsize
        return np.asarray(Memory(num_bytes, self._memory, self._live)).view(dtype).reshape(shape).view(There)

    def pinned(self, shape, dtype):
        num_bytes = math.prod((shape,) if isinstance(shape, int) else shape) * np.dtype(dtype).itemsize
        array = np.asarray(Memory(num_bytes, self._pinned, self._live_pinned)).view(dtype).reshape(shape)
        return array

    @property
    def allocated(self):
        """Referenced bytes on the device."""
        return self._live[0]

    def is_pinned(self, array):
        at = array.ctypes.data
        return array.nbytes == 0 or any(0 <= at - ctypes.addressof(raw) < len(raw) for raw in self._pinned)

    def to_device(self, array):
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def array(self, tensor):
        return tensor.numpy().view(There)

    def free_bytes(self):
        return 1 << 30

    def release_memory(self):
        """Do nothing: memory is released as soon as it is no longer referenced."""

    @contextmanager
    def timed(self, name, number, stream):
        begin = stream.record()
        yield
        self._timed.append((name, number, begin, stream.record()))

    def drain(self):
        for stream in self.streams:
            self.finish(stream.record())
        timed, self._timed = self._timed, []
        assert all(begin.done and end.done for *_, begin, end in timed)
        return [StageCall(f"gpu {name}", number, 0.0, 1.0, 0.0) for name, number, *_ in timed]

    def finish(self, event):
        """Do only the work that must precede the event."""
        with self.lock:
            while not event.done:
                if self.error:
                    raise self.error
                self._step(event.stream)

    def step_alone(self, stream):
        """Do one piece of a stream's work in a thread that belongs to no stage. The next wait raises its error."""
        try:
            self._step(stream)
        except Exception as error:
            self.error = error

    def go_on(self):
        for stream in self.streams:
            while stream.name in self._eager and stream.todo and self._may(stream.todo[0]):
                self._step(stream)
        if self._random is not None:
            for stream in self._random.permutation(self.streams):
                for _ in range(self._random.integers(0, 4)):
                    if stream.todo and self._may(stream.todo[0]):
                        self._step(stream)

    def _may(self, what):
        return not isinstance(what, LateEvent) or what.done

    def _step(self, stream):
        what = stream.todo[0]
        if isinstance(what, LateEvent):
            self.finish(what)
            stream.todo.popleft()
        else:
            stream.todo.popleft()
            what()
