"""Launching of CUDA kernels on the caller's stream, over any number of items.

Each kernel uses a grid-stride loop over its items, so the number of threads does not affect the result.
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

from pipeline.kernels import BLOCK_THREADS

if not config.ENABLE_CUDASIM:
    # Numba warns about every grid that does not fill the GPU, but a small batch is not a mistake.
    cuda.dispatcher.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

MAX_BLOCKS = 1 << 12
"""Maximum number of blocks in a grid, more than any GPU runs concurrently. With more items, a thread processes
several."""
WARP = 32

_here = threading.local()


def on_host(array: Any) -> bool:
    """True if an array is in memory that CPU kernels can access."""
    return type(array) is np.ndarray


def array_library(array: Any) -> Any:
    """Return the module whose functions accept this array: NumPy, or CuPy, which is already imported if the array is a
    CuPy array."""
    # The simulator's arrays are NumPy arrays of a different type.
    return np if isinstance(array, np.ndarray) else sys.modules["cupy"]


@contextmanager
def on_stream(pointer: int) -> Iterator[None]:
    """Context in which this thread launches kernels on this stream (a cudaStream_t)."""
    before = getattr(_here, "stream", 0)
    _here.stream = _stream(pointer)
    try:
        yield
    finally:
        _here.stream = before


def launch(kernel: Any, num_items: int, *args: Any, lanes: int = 1) -> None:
    """Launch a kernel with `lanes` threads per item, without waiting for it. Does nothing if there are no items."""
    blocks = min(-(-num_items * lanes // BLOCK_THREADS), MAX_BLOCKS)
    launch_blocks(kernel, blocks, BLOCK_THREADS, *args)


def launch_blocks(kernel: Any, blocks: int, threads: int, *args: Any) -> None:
    """Launch a kernel on a grid chosen by the caller, without waiting for it."""
    if blocks:
        kernel[blocks, threads, getattr(_here, "stream", 0)](*map(_argument, args))


def lanes_for(width: int) -> int:
    """Number of threads that share an item of `width` numbers: the largest power of two up to `width`, at most the size
    of a warp."""
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
    """Numba view of a CuPy array, cached because creating it takes 20 us, as long as a launch. It does not own the
    memory."""
    interface = {"shape": shape, "strides": strides, "typestr": dtype, "data": (pointer, False), "version": 3}
    return cuda.from_cuda_array_interface(interface, owner=None, sync=False)
