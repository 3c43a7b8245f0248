"""Base of all features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipeline.settings import Strict

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from pipeline.features.side_files import SideFile

Name = Annotated[str, Field(min_length=1)]


class Feature(Strict):
    """Columns made from other columns. A subclass has a literal `kind` and declares what it reads and makes."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that the feature reads."""
        return ()

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the columns that the feature makes."""
        return ()

    hashes: ClassVar[bool] = False
    """True if the feature hashes its inputs, so that whole numbers must be integers, as in a category."""
    side_field: ClassVar[str] = ""
    """Name of the field that names the file that the feature reads, if any."""

    @property
    def side_file(self) -> str | None:
        """File that the feature reads, relative to `data.root`, if any."""
        return getattr(self, self.side_field) if self.side_field else None

    @property
    def lacks(self) -> str | None:
        """Statistics that have not been computed yet, in words, if any."""
        return None

    def types(self, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
        """Types of the columns that the feature makes from columns of these types. `side`: its side file. Raises
        ValueError, with the column, if a type does not fit."""
        raise NotImplementedError

    def compute(self, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
        """Compute the feature's columns from these, whose types `types` has accepted."""
        raise NotImplementedError


class OneColumn(Feature):
    """A feature that reads one column and makes one."""

    column: Name
    name: Name

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.name,)


class SeveralColumns(Feature):
    """A feature that reads one column and makes several, named by `take`."""

    column: Name
    take: dict[Any, Name]

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(self.take.values())


def expect(name: str, found: pa.DataType, *kinds: str) -> None:
    """Raise ValueError if the values of a column of this type have none of these kinds (see `files.types.kind_of`)."""
    from pipeline.files.types import NOTHING, kind_of

    if kind_of(found) not in (NOTHING, *kinds):
        raise ValueError(f"column {name!r} has type {found}, expected {' or '.join(kinds)}")


def doubles(array: pa.Array) -> NDArray[np.float64]:
    """[N] float64 numbers, NaN for null. Values that are not integers are rounded to float32, so that their type in a
    file or request does not matter."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    x_N = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.where(x_N == np.trunc(x_N), x_N, x_N.astype(np.float32).astype(np.float64))
