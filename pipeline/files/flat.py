"""Parquet files and tables as flat columns in plain types: struct fields become columns with dotted names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.files.find import DataFile
from pipeline.files.partitions import check_equal, column_of
from pipeline.files.stores import StoredFile, retried
from pipeline.files.types import (
    WIDE,
    concatenated,
    ends_of,
    is_list,
    is_unsigned,
    plain_type,
    to_plain,
    unified,
    with_sign,
)
from pipeline.messages.uris import is_remote

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
Place = tuple[int, ...]
"""Index of a column in its schema, then of a field in each nested struct."""


def places(schema: pa.Schema) -> list[tuple[str, Place, pa.Field]]:
    """Name, place and field of each flat column, in order. A column takes precedence over a struct field of the same
    name."""
    found = [one for n, field in enumerate(schema) for one in _fields(field, field.name, (n,))]
    return [one for one in found if len(one[1]) == 1 or one[0] not in schema.names]


def _fields(field: pa.Field, name: str, place: Place) -> Iterator[tuple[str, Place, pa.Field]]:
    kind = field.type
    if not pa.types.is_struct(kind):
        yield name, place, field
        return
    for n in range(kind.num_fields):
        inner = kind.field(n)
        yield from _fields(inner, f"{name}.{inner.name}", (*place, n))


def num_leaves(found: pa.DataType) -> int:
    """Number of Parquet column chunks of a type."""
    if isinstance(found, pa.BaseExtensionType):
        return num_leaves(found.storage_type)
    if pa.types.is_struct(found):
        return sum(num_leaves(found.field(n).type) for n in range(found.num_fields))
    if pa.types.is_map(found):
        return num_leaves(found.key_type) + num_leaves(found.item_type)
    return num_leaves(found.value_type) if is_list(found) else 1


def is_read_whole(found: pa.DataType, is_inside: bool = False) -> bool:
    """True for dictionaries and views within structs or lists. `is_inside`: True for a type nested in one."""
    if pa.types.is_nested(found):
        return any(is_read_whole(found.field(n).type, is_inside=True) for n in range(found.num_fields))
    types = (pa.types.is_dictionary, pa.types.is_string_view, pa.types.is_binary_view)
    return is_inside and any(is_type(found) for is_type in types)


def leaf_of(schema: pa.Schema, place: Place) -> int:
    """Index of the first column chunk of the column at a place."""
    number = sum(num_leaves(schema.field(n).type) for n in range(place[0]))
    kind = schema.field(place[0]).type
    for n in place[1:]:
        number += sum(num_leaves(kind.field(m).type) for m in range(n))
        kind = kind.field(n).type
    return number


def at_place(column: pa.ChunkedArray, place: Place) -> pa.ChunkedArray:
    """The column at a place within a table's column; a field of a null struct is null."""
    return pc.struct_field(column, list(place[1:])) if len(place) > 1 else column


class FlatFile(pq.ParquetFile):
    """Parquet file with flat columns in plain types, plus the columns named in its path and those derived by features.
    A requested column that is missing is null."""

    def __init__(
        self, source: str | Path | StoredFile, file: DataFile, is_flat: bool = True, read_dictionary: Sequence[str] = ()
    ) -> None:
        """`source`: the path, or the open file if it is in a store. `file`: the file, whose path may name columns.
        `is_flat`: False for the columns and types as stored in the file. `read_dictionary`: see `pq.ParquetFile`."""
        self.stored = source if isinstance(source, StoredFile) else None
        """The open file, if it is in a store."""
        # From a store, the column chunks of a row group are requested together.
        options = {"metadata": self.stored.metadata(), "pre_buffer": True} if self.stored else {}
        # In nanoseconds, times before 1677 and after 2262 would become others.
        options |= {"coerce_int96_timestamp_unit": "us"} if file.canonical else {}
        options |= {"source": self.stored.file if self.stored else source, "read_dictionary": [*read_dictionary]}
        super().__init__(**options)
        self._file, self._is_flat, self._options = file, is_flat, options
        self._derived = self._file.derived if is_flat else None

    @cached_property
    def _flat(self) -> Mapping[str, tuple[Place, pa.DataType]]:
        """Place and type of each column, by name."""
        schema = self.reader.schema_arrow
        if not self._is_flat:
            return {field.name: ((n,), field.type) for n, field in enumerate(schema)}
        return {name: (place, self._plain_type(field.type, place)) for name, place, field in places(schema)}

    @cached_property
    def _schema(self) -> pa.Schema:
        schema = self.reader.schema_arrow
        found = schema if not self._is_flat else [
            field.with_name(name).with_type(self._flat[name][1]) for name, _, field in places(schema)
        ]  # fmt: skip
        in_path = [name for name, _ in self._file.partitions if name not in self._flat]
        added = [pa.field(name, column_of(self._file, name, 0).type) for name in in_path]
        flat = pa.schema([*found, *added], schema.metadata)
        return self._derived.schema(flat, self._file) if self._derived else flat

    @cached_property
    def _read_whole(self) -> frozenset[str]:
        """Names of columns that Arrow can read only one whole row group at a time."""
        schema = self.reader.schema_arrow
        return frozenset(name for name, (place, _) in self._flat.items() if is_read_whole(schema.field(place[0]).type))

    @property
    def schema_arrow(self) -> pa.Schema:
        """Schema of the columns; contains both columns of a duplicate name."""
        return self._schema

    def inputs(self, names: Iterable[str]) -> list[str]:
        """Columns of the file to read for the named columns, some of which may be computed from others."""
        return self._derived.inputs(names) if self._derived else list(dict.fromkeys(names))

    def leaf(self, name: str) -> int | None:
        """Index of a column's first column chunk; None if the file has no such column."""
        return leaf_of(self.reader.schema_arrow, self._flat[name][0]) if name in self._flat else None

    def statistics(self, name: str) -> list[pq.Statistics | None]:
        """Statistics of a column in each row group; empty if the file has no such column."""
        leaf = self.leaf(name)
        groups = range(self.metadata.num_row_groups if leaf is not None else 0)
        return [self.metadata.row_group(group).column(leaf).statistics for group in groups]

    def read_row_group(self, i: int, columns: Sequence[str], **options: Any) -> pa.Table:
        return self.read_row_groups([i], columns, **options)

    def read_row_groups(self, row_groups: Sequence[int], columns: Sequence[str], **options: Any) -> pa.Table:
        """Read row groups as a table. Raises ValueError, as does `iter_batches`, with the file and its first row group,
        if they cannot be read."""
        if len(row_groups) > 1 and not self._read_whole.isdisjoint(self.inputs(columns)):
            return concatenated([self.read_row_groups([group], columns, **options) for group in row_groups])
        read, inputs = super().read_row_groups, self.inputs(columns)
        with self._reading(row_groups):
            table = retried(
                "read its rows", self._file.place, lambda: read(list(row_groups), columns=inputs, **options)
            )
            if self.stored:
                # Arrow keeps what it has fetched until the next row group is read, or the reader is gone.
                super().__init__(**self._options)
            return self._chosen(table, columns)

    def iter_batches(self, batch_size: int, *, columns: Sequence[str], **options: Any) -> Iterator[pa.RecordBatch]:
        if not self._read_whole.isdisjoint(self.inputs(columns)):
            groups = options.pop("row_groups", range(self.metadata.num_row_groups))
            tables = (self.read_row_groups([group], columns, **options).combine_chunks() for group in groups)
            yield from (batch for table in tables for batch in table.to_batches(batch_size))
            return
        with self._reading(options.get("row_groups", ())):
            for batch in super().iter_batches(batch_size, columns=self.inputs(columns), **options):
                table = self._chosen(pa.Table.from_batches([batch]), columns)
                yield table.combine_chunks().to_batches()[0] if columns else batch.select([])

    @contextmanager
    def _reading(self, row_groups: Sequence[int]) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            at = f": row group {row_groups[0]}" if len(row_groups) else ""
            raise ValueError(f"{self._file}{at}: cannot be read, is the file complete? ({error})") from error

    def _chosen(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The named columns of a table just read, in this order."""
        # Each access to the reader's schema builds a new one: with 2,000 columns, this takes longer than reading them.
        names = self.reader.schema_arrow.names if columns else []
        if self._derived:
            there = [name for name in columns if name not in self._derived or name in self._schema.names]
            made = self._derived.columns(there, lambda name: self._column(table, name, names), self._file)
            chosen = [made[n] if n in made else pa.chunked_array([pa.nulls(table.num_rows)]) for n in columns]
        else:
            chosen = [self._column(table, name, names) for name in columns]
        return pa.table(chosen, list(columns)) if chosen else table.select([])

    def _column(self, table: pa.Table, name: str, names: Sequence[str]) -> pa.ChunkedArray:
        """A flat column of a table just read. `names`: names of the file's columns."""
        in_path = name in (column for column, _ in self._file.partitions)
        if name not in self._flat:
            rows = table.num_rows
            return pa.chunked_array([column_of(self._file, name, rows) if in_path else pa.nulls(rows)])
        place, into = self._flat[name]
        column = table.column(names[place[0]])
        column = at_place(column, self._place_in(column.type, place))
        if self._is_flat:
            column = to_plain(column, into, f"{self._file}: column {name!r}", self._file.canonical)
        if in_path:
            check_equal(self._file, name, column)
        return column

    def _place_in(self, found: pa.DataType, place: Place) -> Place:
        """Translate a place in the file to a place in a column of type `found`, whose structs contain only the fields
        read."""
        if len(place) == 1:
            return place
        kind = self.reader.schema_arrow.field(place[0]).type
        inside = [place[0]]
        for n in place[1:]:
            field = kind.field(n)
            inside.append(found.get_field_index(field.name))
            kind, found = field.type, found.field(inside[-1]).type
        return tuple(inside)

    def _plain_type(self, found: pa.DataType, place: Place) -> pa.DataType:
        into = plain_type(found, self._file.canonical)
        if not (pa.types.is_decimal(found) and found.precision > WIDE and pa.types.is_integer(into)):
            return into
        leaf = leaf_of(self.reader.schema_arrow, place)
        chunks = [self.metadata.row_group(g).column(leaf).statistics for g in range(self.metadata.num_row_groups)]
        ends = [chunk.max for chunk in chunks if chunk is not None and chunk.has_min_max]
        if len(ends) < len(chunks) or not ends:
            return into
        return pa.uint64() if max(ends) >= 1 << 63 else pa.int64()


def open_file(
    path: DataFile | Path, is_flat: bool = True, stored: StoredFile | None = None, read_dictionary: Sequence[str] = ()
) -> FlatFile:
    """Open a Parquet file. `stored`: the same file, already open. Other arguments: see `FlatFile`. Raises ValueError,
    with the cause, if the file is not Parquet or is damaged."""
    try:
        place, file = str(path), path if isinstance(path, DataFile) else DataFile(str(path))
        source = (stored or StoredFile(place)) if is_remote(place) else place
        return FlatFile(source, file, is_flat, read_dictionary)
    except (pa.ArrowException, OSError) as error:
        way = ", is it complete?"
        if path.suffix in TEXT_SUFFIXES:
            way = (
                f"; convert the text to Parquet first: pipeline prepare csv {path} --schema SCHEMA.json "
                "--out FOLDER, with --no-label if its rows are to be scored"
            )
        raise ValueError(f"{path}: cannot be read as Parquet{way} ({error})") from error


@dataclass(frozen=True, slots=True)
class United:
    """A column that may have different types in different files."""

    name: str
    type: pa.DataType
    """Type that can represent the values of all files (see `unified`)."""
    conflict: str = ""
    """The first file whose type does not fit the previous ones, with both types; empty if there is none."""
    lacking: tuple[DataFile, ...] = ()
    """Files without this column, in which it is null."""

    def note(self, num_files: int) -> str:
        """Message about the files without the column."""
        return (
            f"column {self.name!r} is missing in {len(self.lacking):,} of {num_files:,} files, and null there; the "
            f"first is {self.lacking[0]}"
        )


def unite(schemas: Mapping[DataFile, pa.Schema]) -> list[United]:
    """The columns of all files, starting with those of the first. `schemas`: schemas of flat columns."""
    found: dict[str, United] = {}
    for path, schema in schemas.items():
        for field in schema:
            before = found.get(field.name, United(field.name, pa.null()))
            into = unified((before.type, field.type))
            if into is None and not before.conflict:
                said = f"{path}: column {field.name!r} has type {field.type}, and {before.type} in files before it"
                before = replace(
                    before, conflict=f"{said}, such as {next(iter(schemas))}; write it with one type in all files"
                )
            found[field.name] = before if into is None else replace(before, type=into)
    names = {path: {*schema.names} for path, schema in schemas.items()}
    for name, column in found.items():
        if is_unsigned(column.type) and not column.conflict:
            kinds = {path: schema.field(name).type for path, schema in schemas.items() if name in names[path]}
            if len({*kinds.values()}) > 1:
                into, conflict = type_with_sign(column.type, name, kinds)
                found[name] = replace(column, type=into, conflict=conflict)
    lacking = {name: tuple(path for path, there in names.items() if name not in there) for name in found}
    return [replace(column, lacking=lacking[name]) for name, column in found.items()]


def type_with_sign(found: pa.DataType, name: str, paths: Iterable[DataFile]) -> tuple[pa.DataType, str]:
    """Type of a column of unsigned integers of 64 bits (see `with_sign`) in files where others are signed; if there is
    none, what is wrong, with both files."""
    ends = {path: _ends_in(path, name) for path in paths}
    if (into := with_sign(found, [end for of in ends.values() for end in of])) is not None:
        return into, ""
    (least, low), (greatest, high) = (
        of((end or 0, path) for path, both in ends.items() for end in both) for of in (min, max)
    )
    return found, (
        f"{high}: column {name!r} has {greatest}, and {least} in {low}: no integers of 64 bits hold both values from "
        "2^63 on and negative ones; write the column as text in all files"
    )


def _ends_in(path: DataFile, name: str) -> list[int | None]:
    with open_file(path) as file:
        known = file.statistics(name)
        if known and all(one is not None and one.has_min_max for one in known):
            return [end for one in known for end in (one.min, one.max)]
        return ends_of(file.read_row_groups(range(file.metadata.num_row_groups), [name]).column(0))
