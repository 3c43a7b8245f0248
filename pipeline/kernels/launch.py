"""How a CUDA kernel is started: on the stream that its caller works on, over any number of items.

A kernel runs over its items in strides of the whole grid, so any number of threads gives the same result.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import config, cuda

if not config.ENABLE_CUDASIM:
    # Numba warns of every grid that does not fill the GPU; a small batch is no mistake.
    cuda.dispatcher.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

BLOCK_THREADS = 256
MAX_BLOCKS = 1 << 12
"""More than any GPU runs at once; beyond that a thread takes several items."""
WARP = 32

_here = threading.local()


def on_host(array: Any) -> bool:
    """Return whether an array lies where the CPU's kernels reach it."""
    return type(array) is np.ndarray


def array_library(array: Any) -> Any:
    """The module whose functions take this array: NumPy, or CuPy, which has been imported where one is."""
    # The simulator's arrays are NumPy's, and lie elsewhere.
    return np if isinstance(array, np.ndarray) else sys.modules["cupy"]


@contextmanager
def on_stream(pointer: int) -> Iterator[None]:
    """Kernels that this thread launches within go to this stream (a cudaStream_t)."""
    before = getattr(_here, "stream", 0)
    _here.stream = _stream(pointer)
    try:
        yield
    finally:
        _here.stream = before


def launch(kernel: Any, num_items: int, *args: Any, lanes: int = 1) -> None:
    """Start a kernel with `lanes` threads an item, and do not wait for it. No items: nothing to start."""
    blocks = min(-(-num_items * lanes // BLOCK_THREADS), MAX_BLOCKS)
    launch_blocks(kernel, blocks, BLOCK_THREADS, *args)


def launch_blocks(kernel: Any, blocks: int, threads: int, *args: Any) -> None:
    """The same with a grid of the caller's."""
    if blocks:
        kernel[blocks, threads, getattr(_here, "stream", 0)](*map(_argument, args))


def lanes_for(width: int) -> int:
    """Threads that share an item of `width` numbers: a power of two that is no more than that, at most a warp."""
    return min(WARP, 1 << (max(1, width).bit_length() - 1))


@functools.cache
def _stream(pointer: int) -> Any:
    return cuda.external_stream(pointer)


def _argument(value: Any) -> Any:
    if not hasattr(value, "__cuda_array_interface__"):
        return value
    strides = None if value.flags.c_contiguous else value.strides
    return _view(value.data.ptr, value.shape, strides, value.dtype.str)


@functools.lru_cache(1 << 12)
def _view(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: str) -> Any:
    """Return what Numba makes of an array of CuPy's, which takes 20 us: as long as a launch. Holds no memory."""
    interface = {"shape": shape, "strides": strides, "typestr": dtype, "data": (pointer, False), "version": 3}
    return cuda.from_cuda_array_interface(interface, owner=None, sync=False)
