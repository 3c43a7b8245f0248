"""Buffers of Arrow arrays as NumPy arrays, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numeric_values(array: pa.Array) -> tuple[NDArray[Any], NDArray[np.uint8], int]:
    """Values of a numeric array, its validity bitmap, and the array's first bit in the bitmap."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    elif pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    values = _view(array.buffers()[1], array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)], *validity(array)


def validity(array: pa.Array) -> tuple[NDArray[np.uint8], int]:
    """Validity bitmap (empty if there are no nulls), and the array's first bit in it."""
    return _view(array.buffers()[0] if array.null_count else None, np.uint8), array.offset


def texts(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Bytes of a string or binary array, and its [n + 1] offsets (int32, or int64 for the large types)."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    ends = _view(offsets, np.int64 if large else np.int32)
    return _view(data, np.uint8), ends[array.offset : array.offset + len(array) + 1]


def _view(buffer: pa.Buffer | None, dtype: Any) -> NDArray[Any]:
    values = np.frombuffer(b"" if buffer is None else buffer, np.uint8)
    # Arrow pads only some buffers to whole words, and some are writable; kernels are compiled for read-only arrays.
    values = values[: len(values) // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize].view(dtype)
    values.flags.writeable = False
    return values
