"""Columns named by the folders of a path: `day=2026-11-24/site=3/part-0.parquet` has the columns day and site, used
like any other column."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.find import DataFile
from pipeline.files.types import as_python
from pipeline.files.uuids import in_lower_case

TEXT = pa.dictionary(pa.int32(), pa.string())


def column_of(file: DataFile, name: str, num_rows: int) -> pa.Array:
    """[num_rows] values of a column named in the file's path."""
    value = dict(file.partitions)[name]
    found = pa.int64() if name in file.whole else TEXT
    if value is None:
        return pa.nulls(num_rows, found)
    if name in file.whole:
        return pa.repeat(pa.scalar(int(value), found), num_rows)
    text = in_lower_case(pa.array([value])) if file.canonical else pa.array([value])
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), num_rows), text)


def check_equal(file: DataFile, name: str, values: pa.ChunkedArray | pa.Array) -> None:
    """Raises ValueError if the file also contains the column, with a value other than that in its path."""
    value, known = dict(file.partitions)[name], values.drop_null()
    same = value is None and not len(known)
    with suppress(pa.ArrowException):
        if value is not None and len(known) == len(values):
            plain = known.cast(known.type.value_type) if pa.types.is_dictionary(known.type) else known
            if pa.types.is_floating(plain.type) and value.lower() == "nan":
                same = bool(pc.all(pc.is_nan(plain), min_count=0).as_py())
            else:
                forms = {pa.scalar(value), in_lower_case(pa.array([value]))[0]}
                same = any(pc.all(pc.equal(plain, one.cast(plain.type)), min_count=0).as_py() for one in forms)
    if not same:
        other = next((one for one in map(as_python, values.unique()) if str(one) != value), None)
        raise ValueError(
            f"{file}: column {name!r} has {other!r}, and the path says {value!r}; leave the column out of the file, or "
            "move the file to the folder of its values"
        )
