"""How a CUDA kernel is started: on the stream that its caller works on, over any number of items.

A kernel runs over its items in strides of the whole grid, so any number of threads gives the same result.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import cuda

BLOCK_THREADS = 256
MOST_BLOCKS = 1 << 12
"""More than any GPU runs at once; beyond that a thread takes several items."""
WARP = 32

_here = threading.local()


def on_host(array: Any) -> bool:
    """Whether an array lies where the CPU's kernels reach it."""
    return type(array) is np.ndarray


def array_library(array: Any) -> Any:
    """The module whose functions take this array: NumPy, or CuPy, which has been imported where one is."""
    return np if isinstance(array, np.ndarray) else sys.modules["cupy"]


@contextmanager
def on_stream(pointer: int) -> Iterator[None]:
    """Kernels that this thread launches within go to this stream (a cudaStream_t)."""
    before = getattr(_here, "stream", 0)
    _here.stream = cuda.external_stream(pointer)
    try:
        yield
    finally:
        _here.stream = before


def launch(kernel: Any, num_items: int, *args: Any, lanes: int = 1) -> None:
    """Start a kernel with `lanes` threads an item, and do not wait for it. No items: nothing to start."""
    blocks = min(-(-num_items * lanes // BLOCK_THREADS), MOST_BLOCKS)
    launch_blocks(kernel, blocks, BLOCK_THREADS, *args)


def launch_blocks(kernel: Any, blocks: int, threads: int, *args: Any) -> None:
    """The same with a grid of the caller's."""
    if blocks:
        kernel[blocks, threads, getattr(_here, "stream", 0)](*map(_argument, args))


def lanes_for(width: int) -> int:
    """Threads that share an item of `width` numbers: a power of two, at most a warp."""
    return min(WARP, 1 << max(0, width - 1).bit_length())


def _argument(value: Any) -> Any:
    # Converted here, once; Numba would look through the interface twice, for the type and for the address.
    return cuda.as_cuda_array(value, sync=False) if hasattr(value, "__cuda_array_interface__") else value
