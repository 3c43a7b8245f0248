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
    """Columns made of others. A subclass has a literal `kind`, and says what it reads and makes."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that it is computed from."""
        return ()

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        return ()

    hashes: ClassVar[bool] = False
    """True if it hashes what it reads, so that whole numbers must come as integers, as those of a category."""
    side_field: ClassVar[str] = ""
    """Name of the field with the file that it reads, if it reads one."""

    @property
    def side_file(self) -> str | None:
        """File that it reads, relative to `data.root`."""
        return getattr(self, self.side_field) if self.side_field else None

    @property
    def lacks(self) -> str | None:
        """Statistic that has not been computed yet."""
        return None

    def types(self, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
        """Types of the columns that it makes of columns of these types. `side`: its side file. Raises
        ValueError, with the column, if one does not fit."""
        raise NotImplementedError

    def compute(self, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
        """The columns that it makes of these, whose types `types` has accepted."""
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
    """A feature that reads one column and makes several; `take` has their names."""

    column: Name
    take: dict[Any, Name]

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(self.take.values())


def expect(name: str, found: pa.DataType, *kinds: str) -> None:
    """Raises ValueError if a column of this type has values of none of these kinds (see `files.types.kind_of`)."""
    from pipeline.files.types import NOTHING, kind_of

    if kind_of(found) not in (NOTHING, *kinds):
        raise ValueError(f"column {name!r} has type {found}, expected {' or '.join(kinds)}")


def doubles(array: pa.Array) -> NDArray[np.float64]:
    """[N] float64 numbers, NaN for null. Values that are no integers are rounded to float32, so that it does not matter
    in which type a file or a request has them."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    x_N = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.where(x_N == np.trunc(x_N), x_N, x_N.astype(np.float32).astype(np.float64))
