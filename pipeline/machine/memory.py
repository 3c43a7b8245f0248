"""Memory for arrays that live long and are used again and again."""

from __future__ import annotations

import ctypes
import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes. Matrix libraries give other bits for other alignments, so every array that a model reads begins on one."""


MAPPED_BYTES = 32 << 20
"""Arrays from this size on are mapped, and their memory goes back to the system with them: see `keep_freed_memory`."""


def aligned_empty(shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An uninitialized C-contiguous array that begins on a multiple of `ALIGNMENT` bytes. MemoryError: there is not so
    much."""
    shape = (shape,) if isinstance(shape, int) else shape
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = _mapped(num_bytes) if num_bytes >= MAPPED_BYTES else np.empty(num_bytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + num_bytes].view(dtype).reshape(shape)


def _mapped(num_bytes: int) -> NDArray[np.uint8]:
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{num_bytes:,} bytes cannot be allocated") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # As NumPy does with what it allocates. A kernel may have been built without them.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def share_one_arena() -> None:
    """Have all threads allocate from the C allocator's main arena: only that one can grow past 64 MiB, and with another
    a thread pays for the page faults of every large block. A thread that there is already keeps what it has. A no-op
    where there is no glibc."""
    _mallopt((-8, 1))


def keep_freed_memory() -> None:
    """Have the C allocator reuse large freed blocks instead of handing them back to the system.

    A training step frees and allocates again the gradients of its embeddings (14 MB for 8,192 examples of 26 fields of
    16): without this every step pays for their page faults, measured 7 of 29 ms, and with batches of 32,768 almost half
    of its time. A no-op where there is no glibc.
    """
    mmap_max, trim_threshold = -4, -1
    _mallopt((mmap_max, 0), (trim_threshold, 2**31 - 1))


def _mallopt(*settings: tuple[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in settings:
            mallopt(option, value)
