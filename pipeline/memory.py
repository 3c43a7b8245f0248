"""Memory for arrays that live long and are used again and again."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes. Matrix libraries give other bits for other alignments, so every array that a model reads begins on one."""


def aligned_empty(shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An uninitialized C-contiguous array that begins on a multiple of `ALIGNMENT` bytes."""
    shape = (shape,) if isinstance(shape, int) else shape
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(num_bytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + num_bytes].view(dtype).reshape(shape)


def keep_freed_memory() -> None:
    """Have the C allocator reuse large freed blocks instead of handing them back to the system.

    A training step frees and allocates again the gradients of its embeddings (14 MB for 8,192 examples of 26 fields of
    16): without this every step pays for their page faults, measured 7 of 29 ms. A no-op where there is no glibc.
    """
    arena_max, mmap_threshold, trim_threshold = -8, -3, -1
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # glibc's largest threshold; threads share one arena, since only the main one can grow past 64 MiB.
        for option, value in ((arena_max, 1), (mmap_threshold, 32 << 20), (trim_threshold, 2**31 - 1)):
            mallopt(option, value)
