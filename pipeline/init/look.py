"""A look at the columns of data files: types, nulls, ranges and numbers of different values, from a sample of rows."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.data.files import kind_of, open_file
from pipeline.doctor.sample import sample_rows, spaced
from pipeline.files.find import DataFile
from pipeline.files.partitions import with_columns

LOOKED_AT_ROWS = 200_000
LOOKED_AT_FILES = 16
"""Maximum number of files that the sample is taken from, evenly spaced among all."""
CSV_BYTES = 32 << 20
"""Bytes of the beginning of a CSV file that are looked at."""
DELIMITERS = ",\t;|"
TIME_TYPES = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time)


@dataclass(frozen=True, slots=True)
class Column:
    """Column of the sample, described."""

    name: str
    type: pa.DataType
    kind: str | None
    """See `pipeline.data.files.kind_of`; also "time", and None for what no workflow can read."""
    num_rows: int
    num_nulls: int
    num_different: int
    """Number of different values, without null; of a list column, of the values in the lists."""
    minimum: Any
    maximum: Any
    """Least and greatest value: exact where the files have statistics, else of the sample. None for text and lists."""
    examples: tuple[Any, ...]

    @property
    def whole(self) -> bool:
        return self.kind is not None and self.kind.endswith("integers")


@dataclass(frozen=True, slots=True)
class Look:
    """Sample of a set of files, with its columns described."""

    paths: tuple[DataFile, ...]
    rows: tuple[int, ...]
    """Number of rows of each file: exact for Parquet, estimated from the number of bytes for CSV."""
    sample: pa.Table
    file_of: NDArray[np.int64]
    """[N] number of the file of each row of the sample."""
    columns: tuple[Column, ...]
    delimiter: str | None
    """Delimiter of text; None for Parquet."""
    has_header: bool


def look_at_files(paths: Sequence[DataFile]) -> Look:
    """Look at Parquet or CSV files of one shape. Raises ValueError if they are neither, mixed, or of several shapes."""
    parquet = [is_parquet(path) for path in paths]
    if all(parquet):
        return _parquet(paths)
    if any(parquet):
        other = paths[parquet.index(False)]
        raise ValueError(f"{other} is no Parquet file, and {paths[parquet.index(True)]} is one; give files of one kind")
    return _text(paths)


def is_parquet(path: DataFile) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _parquet(paths: Sequence[DataFile]) -> Look:
    rows: list[int] = []
    limits: dict[str, tuple[Any, Any]] = {}
    schema = None
    for path in paths:
        with open_file(path) as file:
            rows.append(file.metadata.num_rows)
            if schema is None:
                schema = file.schema_arrow
            elif different := _difference(schema, file.schema_arrow):
                raise ValueError(f"{path}: {different}, unlike {paths[0]}; give files of one shape")
            _widen(limits, file.metadata)
    assert schema is not None
    chosen = spaced(range(len(paths)), LOOKED_AT_FILES)
    quota = LOOKED_AT_ROWS // len(chosen)
    tables = [sample_rows(paths[number], schema.names, quota)[0].cast(schema, safe=False) for number in chosen]
    file_of = np.repeat(chosen, [table.num_rows for table in tables])
    sample = pa.concat_tables(tables)
    return Look(tuple(paths), tuple(rows), sample, file_of, _columns(sample, limits), None, True)


def _difference(schema: pa.Schema, other: pa.Schema) -> str:
    for name in schema.names:
        if name not in other.names:
            return f"has no column {name!r}"
        if kind_of(schema.field(name).type) != kind_of(other.field(name).type):
            return f"column {name!r} has type {other.field(name).type}"
    return ""


def _widen(limits: dict[str, tuple[Any, Any]], metadata: pq.FileMetaData) -> None:
    """Extend the limits of each column by the statistics of a file. A column without statistics gets none."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number in range(row_group.num_columns):
            chunk = row_group.column(number)
            name, found = chunk.path_in_schema, chunk.statistics
            if found is None or not found.has_min_max or isinstance(found.min, bytes | str):
                continue
            low, high = limits.get(name, (found.min, found.max))
            limits[name] = (min(low, found.min), max(high, found.max))


def _text(paths: Sequence[DataFile]) -> Look:
    head = _first_line(paths[0])
    delimiter = max(DELIMITERS, key=head.count)
    names = next(csv.reader([head], delimiter=delimiter))
    has_header = _is_header(names)
    for path in paths[1:]:
        other = next(csv.reader([_first_line(path)], delimiter=delimiter))
        if has_header and _is_header(other) != has_header:
            raise ValueError(
                f"{path} has no header, {paths[0]} has one; add the line {head!r} to it, or give the files separately"
            )
        if has_header and (different := sorted({*names} ^ {*other})):
            having, lacking = (path, paths[0]) if different[0] in other else (paths[0], path)
            raise ValueError(f"{lacking} has no column {different[0]!r}, {having} has one; give files of one shape")
        if len(other) != len(names):
            raise ValueError(f"{path} has {len(other)} columns, {paths[0]} has {len(names)}; give files of one shape")
    columns = names if has_header else [f"c{n}" for n in range(1, len(names) + 1)]
    tables, rows, sizes = [], [], []
    chosen = spaced(range(len(paths)), LOOKED_AT_FILES)
    for number, path in enumerate(paths):
        with open(path, "rb") as file:
            text = file.read(CSV_BYTES // len(chosen))
        size = os.stat(path).st_size
        text = text[: text.rfind(b"\n") + 1] if len(text) < size else text
        rows.append(int(text.count(b"\n") * size / max(1, len(text))) - has_header)
        if number in chosen:
            # The columns of a later file may be in another order.
            own = next(csv.reader([_first_line(path)], delimiter=delimiter)) if has_header else columns
            tables.append(_read_csv(text, own, delimiter, has_header, path).select(columns))
            sizes.append(tables[-1].num_rows)
    file_of = np.repeat(chosen, sizes)
    sample = with_columns(pa.concat_tables(tables, promote_options="permissive"), paths, file_of)
    return Look(tuple(paths), tuple(rows), sample, file_of, _columns(sample, {}), delimiter, has_header)


def _first_line(path: DataFile) -> str:
    with open(path, "rb") as file:
        line = file.readline(1 << 20)
    if b"\0" in line:
        raise ValueError(f"{path} is neither Parquet nor text; `pipeline prepare` reads other formats and .gz and .zst")
    return line.decode(errors="replace").removeprefix("\ufeff").rstrip("\r\n")


def _is_header(names: Sequence[str]) -> bool:
    """True if all values of a line are different and none is a number or empty."""
    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
    return len(set(names)) == len(names) and all(name and not number.fullmatch(name.strip()) for name in names)


def _read_csv(text: bytes, columns: list[str], delimiter: str, has_header: bool, path: DataFile) -> pa.Table:
    try:
        return pa_csv.read_csv(
            pa.BufferReader(text),
            read_options=pa_csv.ReadOptions(column_names=columns, skip_rows=int(has_header), use_threads=False),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter),
            convert_options=pa_csv.ConvertOptions(null_values=[""], strings_can_be_null=True),
        )
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as CSV with the delimiter {delimiter!r}: {error}") from error


def _columns(sample: pa.Table, limits: dict[str, tuple[Any, Any]]) -> tuple[Column, ...]:
    return tuple(_column(name, sample.column(name), limits) for name in sample.schema.names)


def _column(name: str, values: pa.ChunkedArray, limits: dict[str, tuple[Any, Any]]) -> Column:
    found = values.type
    is_time = any(is_kind(found) for is_kind in TIME_TYPES)
    kind = "time" if is_time else kind_of(found)
    flat = values
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        flat = pa.chunked_array([pc.list_flatten(chunk) for chunk in values.chunks], found.value_type)
    different = pc.unique(flat.combine_chunks() if pa.types.is_dictionary(flat.type) else flat)
    different = different.filter(pc.is_valid(different)) if len(different) else different
    minimum = maximum = None
    if kind in ("integers", "numbers", "time") and len(different):
        known = flat.cast(flat.type.value_type) if pa.types.is_dictionary(flat.type) else flat
        if pa.types.is_floating(known.type):
            known = known.filter(pc.fill_null(pc.is_finite(known), False))
        ends = pc.min_max(known)
        minimum, maximum = limits.get(name) or (ends["min"].as_py(), ends["max"].as_py())
    examples = tuple(different.slice(0, 3).to_pylist())
    return Column(name, found, kind, len(values), values.null_count, len(different), minimum, maximum, examples)
