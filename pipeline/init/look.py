"""A look at the columns of data files: types, nulls, ranges and numbers of different values, from a sample of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.data.files import open_file
from pipeline.doctor.sample import spaced
from pipeline.files.find import DataFile
from pipeline.files.flat import FlatFile, unite
from pipeline.files.stores import open_bytes
from pipeline.files.types import concatenated, is_list, kind_of
from pipeline.init.forms import Form
from pipeline.init.text import sample_text
from pipeline.prepare.schema import Role
from pipeline.prepare.times import DAYS, micros_of

LOOKED_AT_ROWS = 200_000
LOOKED_AT_FILES = 16
"""Maximum number of files that the sample is taken from, evenly spaced among all."""
DECODED = 16
"""Maximum number of rows that are decoded for one that is looked at, but for three row groups."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of the sample, described."""

    name: str
    type: pa.DataType
    kind: str | None
    """See `pipeline.files.types.kind_of`; also "time", and None for what no workflow can read."""
    num_rows: int
    num_nulls: int
    num_different: int
    """Number of different values, without null; of a list column, of the values in the lists."""
    minimum: Any
    maximum: Any
    """Least and greatest value: exact where the files have statistics, else of the sample. None for text and lists."""
    examples: tuple[Any, ...]
    types: Mapping[Role, str] = field(default_factory=dict)
    """Type of a column of text in the schema of `prepare`, by the role that it is given."""
    note: str = ""
    """Doubt about a column of text that becomes a category, with the setting that changes it."""

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
    """Delimiter of text, empty for objects of JSON; None for Parquet."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the schema of delimited text, other than the columns."""
    lacking: Mapping[str, frozenset[DataFile]] = field(default_factory=dict)
    """Parquet files without a column, by its name."""


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
    with open_bytes(str(path)) as file:
        return file.read(4) == b"PAR1"


def _parquet(paths: Sequence[DataFile]) -> Look:
    rows: list[int] = []
    ends: dict[str, list[Any]] = {}
    schemas: dict[DataFile, pa.Schema] = {}
    for path in paths:
        with open_file(path) as file:
            rows.append(file.metadata.num_rows)
            schemas[path] = file.schema_arrow
            for name in file.schema_arrow.names:
                ends.setdefault(name, []).extend(_ends(file, name))
    columns = unite(schemas)
    if conflict := next((column.conflict for column in columns if column.conflict), ""):
        raise ValueError(conflict)
    for column in columns:
        if column.lacking:
            print(column.note(len(paths)))
    chosen = spaced(range(len(paths)), LOOKED_AT_FILES)
    quota = LOOKED_AT_ROWS // len(chosen)
    names = [column.name for column in columns]
    tables = [_spread_rows(paths[number], names, quota) for number in chosen]
    file_of = np.repeat(chosen, [table.num_rows for table in tables])
    types = pa.schema([(column.name, column.type) for column in columns])
    sample = concatenated([types.empty_table(), *tables])
    limits = {name: (min(values), max(values)) for name, values in ends.items() if values}
    described = tuple(_column(name, sample.column(name), limits) for name in names)
    lacking = {column.name: frozenset(column.lacking) for column in columns}
    return Look(tuple(paths), tuple(rows), sample, file_of, described, None, lacking=lacking)


def _spread_rows(path: DataFile, names: Sequence[str], quota: int) -> pa.Table:
    """At most about `quota` rows of a Parquet file, in order, from all of its row groups, or if it is large from evenly
    spaced ones with the first and the last."""
    with open_file(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        groups = [group for group, size in enumerate(sizes) if size]
        most = max(3, int(DECODED * quota * len(sizes) / max(1, sum(sizes))))
        groups = [groups[n] for n in np.unique(np.linspace(0, len(groups) - 1, most).astype(int))] if groups else []
        share, draw = quota / max(1, sum(sizes[group] for group in groups)), np.random.default_rng(0)
        tables = []
        try:
            for batch in file.iter_batches(1 << 16, columns=names, row_groups=groups, use_threads=False):
                table = pa.Table.from_batches([batch])
                tables.append(table if share >= 1 else table.filter(pa.array(draw.random(len(table)) < share)))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path}: cannot be read, is the file complete? ({error})") from error
    return concatenated([pa.table({name: pa.nulls(0) for name in names}), *tables])


def _ends(file: FlatFile, name: str) -> list[Any]:
    """Least and greatest values of a column by the statistics of those row groups that have them."""
    known = [one for one in file.statistics(name) if one is not None and one.has_min_max]
    ends = [end for one in known for end in (one.min, one.max) if not isinstance(end, bytes | str)]
    return [float(end) if isinstance(end, Decimal) else end for end in ends]


def _text(paths: Sequence[DataFile]) -> Look:
    found = sample_text(paths, LOOKED_AT_FILES)
    columns = tuple(_of_text(name, found.table.column(name), form) for name, form in found.forms.items())
    delimiter = found.options.get("delimiter", "")
    return Look(found.paths, found.rows, found.table, found.file_of, columns, delimiter, found.options)


def _of_text(name: str, values: pa.ChunkedArray, form: Form) -> Column:
    """Column of text; texts in a form of times are of the kind "time"."""
    column = replace(_column(name, values, {}), types=form.types, note=form.note)
    if form.types.get("time") not in DAYS:
        return column
    known = values.drop_null()
    order = pc.sort_indices(micros_of(known, form.types["time"]))
    return replace(column, kind="time", minimum=known[order[0].as_py()], maximum=known[order[-1].as_py()])


def _column(name: str, values: pa.ChunkedArray, limits: dict[str, tuple[Any, Any]]) -> Column:
    found = values.type
    # Lists of floats may be whole in the sample, and not in other rows.
    kind = {"times": "time", "lists of numbers": None}.get(str(kind_of(found)), kind_of(found))
    if kind is None:
        return Column(
            name, found, None, len(values), values.null_count, len(values) - values.null_count, None, None, ()
        )
    # Arrow compares no floats of 16 bits.
    flat = values = values.cast(pa.float32()) if pa.types.is_float16(found) else values
    if is_list(found):
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
