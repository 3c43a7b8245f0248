"""Numbers as keys: each bucket of values becomes a category."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from pipeline.features.feature import OneColumn, doubles, expect

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from pipeline.features.side_files import SideFile

LARGEST = 1 << 64
"""Bound above which all values share a bucket under Criteo's rule."""
SMALLEST = -(1 << 62)


class Bucket(OneColumn):
    """A column of integers made from a column of numbers: the number of `edges` that a value reaches. Null and NaN
    become null.

    With `quantiles`, the edges are quantiles of the training data, computed by `pipeline prepare statistics`. With
    `squared_log`, a value x above 2 is in bucket floor(ln(x)^2), and any other value in the bucket of its integer part:
    the rule of the winners of Criteo's 2014 contest, which BARS adopted. Values above 2^64 share a bucket, and so do
    values below -2^62.
    """

    kind: Literal["bucket"] = "bucket"
    edges: tuple[float, ...] | None = None
    quantiles: Annotated[int, Field(ge=2, le=1 << 16)] | None = None
    squared_log: bool = False
    missing: float | None = None
    """A value that is also treated as null."""
    computed: bool = False
    """True if the edges come from `data.statistics`."""

    @model_validator(mode="after")
    def _has_a_rule(self) -> Bucket:
        if (self.edges is None and self.quantiles is None) != self.squared_log:
            raise ValueError(f"bucket {self.name!r}: give one of edges, quantiles and squared_log")
        if not all(a < b for a, b in pairwise(self.edges or ())) or self.edges == ():
            raise ValueError(f"bucket {self.name!r}: edges are {self.edges}, expected one or more, in ascending order")
        return self

    @property
    def lacks(self) -> str | None:
        return "edges" if self.edges is None and not self.squared_log else None

    def types(self, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
        import pyarrow as pa

        expect(self.column, found[0], "integers", "numbers")
        return [pa.int64()]

    def compute(self, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
        import numpy as np
        import pyarrow as pa

        x_N = doubles(given[0])
        is_null_N = np.isnan(x_N) | np.isin(x_N, doubles(pa.array([self.missing], pa.float64())))
        if self.squared_log:
            bucket_N = _squared_log(np.where(is_null_N, 0, x_N))
        else:
            bucket_N = np.searchsorted(doubles(pa.array(self.edges, pa.float64())), x_N, side="right")
        return [pa.array(bucket_N.astype(np.int64), mask=is_null_N)]


def _squared_log(x_N: NDArray[np.float64]) -> NDArray[np.int64]:
    """[N] buckets of finite numbers under Criteo's rule."""
    import numpy as np

    below = np.clip(x_N, SMALLEST, 2).astype(np.int64)
    return np.where(x_N > 2, np.searchsorted(_squared_log_edges(), x_N, side="right"), below)


@cache
def _squared_log_edges() -> NDArray[np.float64]:
    """Smallest float64 number of each bucket 1, 2, ...: e^sqrt(k), rounded up. Unlike library logarithms, whose last
    bit depends on the processor, these are the same everywhere."""
    import numpy as np

    edges: list[float] = []
    with localcontext(prec=50):
        while not edges or edges[-1] < LARGEST:
            exact = Decimal(len(edges) + 1).sqrt().exp()
            near = float(exact)
            edges.append(near if Decimal(near) >= exact else float(np.nextafter(near, np.inf)))
    return np.array(edges[:-1])
