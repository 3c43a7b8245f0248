"""Types and numeric values of the columns that features read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.files.types import NOTHING, kind_of


def expect(name: str, found: pa.DataType, *kinds: str) -> None:
    """Raise ValueError if the values of a column of this type are of none of these kinds (see
    `files.types.kind_of`)."""
    if kind_of(found) not in (NOTHING, *kinds):
        raise ValueError(f"column {name!r} has type {found}, expected {' or '.join(kinds)}")


def doubles(array: pa.Array) -> NDArray[np.float64]:
    """[N] float64 numbers, NaN for null. Values that are not integers are rounded to float32, so that their type in a
    file or request does not matter."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    x_N = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.where(x_N == np.trunc(x_N), x_N, x_N.astype(np.float32).astype(np.float64))
