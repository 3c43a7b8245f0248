"""Allocation of large arrays that are reused, and settings of the C allocator."""

from __future__ import annotations

import ctypes
import math
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Alignment in bytes of every array that a model reads: matrix libraries give other bits for other alignments."""


MAPPED_BYTES = 32 << 20
"""Minimum size of arrays that are mapped: the system gets their memory back when they are freed, in spite of
`keep_freed_memory`."""


def aligned_empty(shape: int | tuple[int, ...], dtype: Any, alignment: int = ALIGNMENT) -> NDArray[Any]:
    """Allocate an uninitialized C-contiguous array that begins at a multiple of `alignment` bytes. Raises MemoryError
    if there is too little memory."""
    shape = (shape,) if isinstance(shape, int) else shape
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = _mapped(num_bytes) if num_bytes >= MAPPED_BYTES else np.empty(num_bytes + alignment, np.uint8)
    skip = -raw.ctypes.data % alignment
    return raw[skip : skip + num_bytes].view(dtype).reshape(shape)


def _mapped(num_bytes: int) -> NDArray[np.uint8]:
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_bytes:,} bytes cannot be allocated") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Use huge pages, as NumPy does for its arrays. The kernel may have been built without them.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def resident_bytes() -> int:
    """Bytes of RAM that this process takes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def share_one_arena() -> None:
    """Make all threads allocate from the C allocator's main arena. Only this arena can grow past 64 MiB; with another
    one, a thread pays for the page faults of every large block. Threads that exist already keep their arena. A no-op
    without glibc."""
    _mallopt((-8, 1))


def keep_freed_memory() -> None:
    """Make the C allocator reuse large freed blocks instead of returning them to the system.

    A training step frees the gradients of its embeddings and allocates them again (14 MB for 8,192 examples of 26
    fields of 16). Without this setting every step pays for their page faults: measured, 7 of 29 ms, and almost half of
    the step with batches of 32,768. A no-op without glibc.
    """
    mmap_max, trim_threshold = -4, -1
    _mallopt((mmap_max, 0), (trim_threshold, 2**31 - 1))


def return_freed_memory() -> None:
    """Return what the C allocator keeps of freed blocks to the system, once. A no-op without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _mallopt(*settings: tuple[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in settings:
            mallopt(option, value)
