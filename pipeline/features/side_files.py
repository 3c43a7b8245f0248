"""Files that features read next to the data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.stores import Stamp, stamp_of
from pipeline.files.types import NOTHING, kind_of

COLUMNS = b"pipeline.columns"
"""Metadata entry of a file of counts (see `Rare`): the columns whose values are counted, as JSON."""
VALUE, COUNT = "value", "count"
"""Columns of a file of counts."""


class SideFile(NamedTuple):
    place: str
    stamp: Stamp | None
    """Changes with the content, so that a changed file is read again."""
    canonical: bool = True
    """See `DataFile`."""

    def __str__(self) -> str:
        return self.place


NO_FILE = SideFile("", None)


def side_file(place: str, canonical: bool = True) -> SideFile:
    """Return the side file at a place. Raises ValueError if there is no such file."""
    if os.path.isdir(place):
        one = f"pq.write_table(ds.dataset({place!r}).to_table(), {place.rstrip('/') + '.parquet'!r})"
        raise ValueError(
            f"{place} is a folder, and a feature reads one file; write its files as one, for example by: import "
            f"pyarrow.dataset as ds, pyarrow.parquet as pq; {one}"
        )
    try:
        return SideFile(place, stamp_of(place), canonical)
    except OSError as error:
        raise ValueError(
            f"{place} cannot be read ({error}); correct the name, which is relative to data.root"
        ) from None


def read_columns(side: SideFile, names: Sequence[str]) -> pa.Table:
    """Read these columns of a Parquet file, in plain types, with its metadata. Raises ValueError if one is missing."""
    with open_file(DataFile(side.place, canonical=side.canonical)) as file:
        has = file.schema_arrow.names
        if missing := [name for name in names if name not in has]:
            raise ValueError(f"{side}: has no column {', '.join(map(repr, missing))}; it has {', '.join(has)}")
        table = file.read_row_groups(range(file.metadata.num_row_groups), list(dict.fromkeys(names)))
        return table.replace_schema_metadata(file.schema_arrow.metadata)


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
