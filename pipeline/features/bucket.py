"""Numbers as keys: each bucket of values is a category."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.features.settings import Bucket
from pipeline.features.side_files import SideFile, doubles, expect

LARGEST = 1 << 64
"""Bound above which all values share one bucket under Criteo's rule."""
SMALLEST = -(1 << 62)


def types(bucket: Bucket, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
    expect(bucket.column, found[0], "integers", "numbers")
    return [pa.int64()]


def are_missing(bucket: Bucket, x_N: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[N] True for numbers, as `doubles` returns them, that are in no bucket: NaN and `missing`."""
    return np.isnan(x_N) | np.isin(x_N, doubles(pa.array([bucket.missing], pa.float64())))


def compute(bucket: Bucket, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
    x_N = doubles(given[0])
    is_null_N = are_missing(bucket, x_N)
    if bucket.squared_log:
        bucket_N = _squared_log(np.where(is_null_N, 0, x_N))
    else:
        bucket_N = np.searchsorted(doubles(pa.array(bucket.edges, pa.float64())), x_N, side="right")
    return [pa.array(bucket_N.astype(np.int64), mask=is_null_N)]


def _squared_log(x_N: NDArray[np.float64]) -> NDArray[np.int64]:
    """[N] buckets of finite numbers under Criteo's rule."""
    below = np.clip(x_N, SMALLEST, 2).astype(np.int64)
    return np.where(x_N > 2, np.searchsorted(_squared_log_edges(), x_N, side="right"), below)


@cache
def _squared_log_edges() -> NDArray[np.float64]:
    """Smallest float64 number of each bucket 1, 2, ...: e^sqrt(k), rounded up. Unlike library logarithms, whose last
    bit depends on the processor, these are the same everywhere."""
    edges: list[float] = []
    with localcontext(prec=50):
        while not edges or edges[-1] < LARGEST:
            exact = Decimal(len(edges) + 1).sqrt().exp()
            near = float(exact)
            edges.append(near if Decimal(near) >= exact else float(np.nextafter(near, np.inf)))
    return np.array(edges[:-1])
