"""Numbers of mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.features.settings import Standardize
from pipeline.features.side_files import SideFile, doubles, expect


def types(feature: Standardize, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
    expect(feature.column, found[0], "integers", "numbers")
    return [pa.float32()]


def compute(feature: Standardize, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
    assert feature.mean is not None
    assert feature.std is not None
    z_N = (scaled(feature, given[0]) - feature.mean) / feature.std
    if feature.clip is not None:
        z_N = np.clip(z_N, -feature.clip, feature.clip)
    with np.errstate(over="ignore"):
        return [pa.array(z_N.astype(np.float32), from_pandas=True)]


def scaled(feature: Standardize, array: pa.Array) -> NDArray[np.float64]:
    """[N] float64 numbers from which mean and standard deviation are computed."""
    x_N = doubles(array)
    return np.sign(x_N) * np.log1p(np.abs(x_N)) if feature.log1p else x_N
