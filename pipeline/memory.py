"""Memory for arrays that live long and are used again and again."""

from __future__ import annotations

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
