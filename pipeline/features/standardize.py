"""Numbers scaled to mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from pipeline.features.feature import OneColumn, doubles, expect

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from pipeline.features.side_files import SideFile


class Standardize(OneColumn):
    """A column of float32 numbers: (x - mean) / std, clipped to +-`clip`. Null and NaN become null, which
    `Number.fill`, by default 0, replaces by the mean. If mean and std are omitted, `pipeline prepare statistics`
    computes them from the training data."""

    kind: Literal["standardize"] = "standardize"
    mean: float | None = None
    std: Annotated[float, Field(gt=0.0)] | None = None
    log1p: bool = False
    """Use sign(x) ln(1 + |x|) instead of x. Mean and standard deviation are then those of this value."""
    clip: Annotated[float, Field(gt=0.0)] | None = None
    computed: bool = False
    """True if mean and standard deviation come from `data.statistics`."""

    @model_validator(mode="after")
    def _has_both_or_none(self) -> Standardize:
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"standardize {self.name!r}: give mean and std, or neither, which are then computed")
        return self

    @property
    def lacks(self) -> str | None:
        return "mean and std" if self.mean is None or self.std is None else None

    def types(self, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
        import pyarrow as pa

        expect(self.column, found[0], "integers", "numbers")
        return [pa.float32()]

    def compute(self, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
        import numpy as np
        import pyarrow as pa

        assert self.mean is not None
        assert self.std is not None
        z_N = (self.scaled(given[0]) - self.mean) / self.std
        if self.clip is not None:
            z_N = np.clip(z_N, -self.clip, self.clip)
        with np.errstate(over="ignore"):
            return [pa.array(z_N.astype(np.float32), from_pandas=True)]

    def scaled(self, array: pa.Array) -> NDArray[np.float64]:
        """[N] float64 numbers from which mean and standard deviation are computed."""
        import numpy as np

        x_N = doubles(array)
        return np.sign(x_N) * np.log1p(np.abs(x_N)) if self.log1p else x_N
