"""Allocation of large arrays that are reused, and the memory of this process."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Alignment in bytes of every array that a model reads: the bits of matrix libraries' results depend on the
alignment."""


MAPPED_BYTES = 32 << 20
"""Minimum size in bytes of arrays that are mapped with mmap: their memory returns to the system when they are freed,
despite `keep_freed_memory`."""


def aligned_empty(shape: int | tuple[int, ...], dtype: Any, alignment: int = ALIGNMENT) -> NDArray[Any]:
    """Allocate an uninitialized C-contiguous array that starts at a multiple of `alignment` bytes. Raises MemoryError
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
    """Bytes of RAM that this process currently uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
