"""Parts of a piece as Arrow tables: one row per line of text or row of Parquet, in order. Skipped bad rows are
counted."""

from __future__ import annotations

import csv
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.find import DataFile
from pipeline.files.flat import FlatFile, open_file
from pipeline.files.partitions import check_equal
from pipeline.files.types import kind_of, value_of, whole
from pipeline.prepare.formats import Format
from pipeline.prepare.heads import names_in, values_in
from pipeline.prepare.histories import LEFT_OUT, PLACE
from pipeline.prepare.json_lines import json_parser
from pipeline.prepare.lines import Parser, count_lines, may_skip, parse_lines
from pipeline.prepare.schema import Field
from pipeline.prepare.sparse import sparse_parser
from pipeline.prepare.stretches import Piece, Stretch, first_line, rows_a_part, stretches
from pipeline.prepare.text import NAMELESS, text_parser
from pipeline.prepare.values import bad_values, label_of


@dataclass
class SourcePart:
    file: int
    number: int
    table: pa.Table
    """Table with `Format.schema`: the part's lines except skipped ones."""
    num_lines: int = 0
    """Number of lines, excluding the header: `table.num_rows + num_skipped`, unless the part's number is in `made`."""
    num_skipped: int = 0
    last: bool = False
    """True if the file has no later part."""
    end: int = 0
    """Bytes of the file read up to the part's end, if the file is read as a stream."""


def parts(piece: Piece, format: Format, skip: float | None = None, made: Container[int] = ()) -> Iterator[SourcePart]:
    """Read the parts of a piece in order. A part is not parsed if its number is in `made`: its table is empty.

    One part is in memory at any time: its table, plus twice the size of its text during parsing. Raises ValueError,
    with file and line (Parquet: file and row, counted from 1), if a value does not match the format.
    """
    return (_of_row_groups if format.kind == "parquet" else _of_lines)(piece, format, skip, made)


def _of_lines(piece: Piece, format: Format, skip: float | None, made: Container[int]) -> Iterator[SourcePart]:
    parse = _parser(piece.path, in_files_of(piece.path, format))
    for stretch in stretches(piece, format):
        part = SourcePart(piece.file, stretch.number, format.schema.empty_table(), last=stretch.last, end=stretch.end)
        if part.number in made:
            part.num_lines = count_lines(stretch.text, format.newlines)
        else:
            where = partial(place_of, stretch, piece.path, format)
            part.table, part.num_skipped = parse_lines(stretch.text, format.newlines, parse, skip, where)
            part.num_lines = part.table.num_rows + part.num_skipped
            part.table = with_path(part.table, piece.path, format)
        # Only the table is needed from here: free the text's memory for what is made from the table.
        stretch.text = b""
        yield part
        # Free the table before the next part is read.
        del part


def place_of(stretch: Stretch, path: DataFile, format: Format, at: int) -> str:
    """Description, for messages, of the line that starts at an offset of the stretch's text."""
    line = stretch.line_at(at)
    headless = line == 1 and format.kind != "json" and not format.has_header(path)
    return f"{path}: line {line:,}{' (a header? this format has none)' if headless else ''}"


def in_files_of(path: DataFile, format: Format) -> Format:
    """Return the format without the columns that come only from the file's path."""
    names = {name for name, _ in getattr(path, "partitions", ())}
    if format.kind == "text" and names and format.has_header(path):
        names -= {*values_in(path, format)[0]}
    return replace(format, fields=tuple(f for f in format.fields if f.name not in names)) if names else format


def with_path(table: pa.Table, path: DataFile, format: Format) -> pa.Table:
    """Add the columns from the file's path to a part. Raises ValueError if one has another value in the file, or does
    not fit its type."""
    for name, value in getattr(path, "partitions", ()):
        if name in table.schema.names:
            check_equal(path, name, table.column(name))
        elif found := next((f for f in format.fields if f.name == name and f.role != "skip"), None):
            column = pa.chunked_array([pa.repeat(pa.scalar(value, pa.string()), table.num_rows)])
            try:
                cast = label_of(column, found.values) if found.values else column.cast(found.arrow_type)
            except pa.ArrowException as error:
                raise ValueError(
                    f"{path}: {name}={value} in its path is no {found.arrow_type}, see --schema"
                ) from error
            if bad := bad_values(pa.table({name: cast}), [found]):
                raise ValueError(f"{path}: {name}={value} in its path: {bad[1]}")
            table = table.append_column(name, cast)
    return table.select(format.schema.names)


def _parser(path: DataFile, format: Format) -> Parser:
    if format.kind == "json":
        return json_parser(format)
    if format.kind != "text":
        return sparse_parser(format)
    names = [f.name for f in format.in_lines]
    if format.has_header(path):
        found = names_in(path, format)
        with suppress(ValueError, csv.Error):
            below = [values for values in values_in(path, format, 3)[1:] if values]
            # Lines may have a trailing delimiter that the header lacks.
            if below and all(len(values) == len(found) + 1 and not values[-1] for values in below):
                found.append(f"{NAMELESS}{len(found) + 1}")
        return text_parser(format, found, first_line(path))
    if format.left_out and len(values_in(path, format)[0]) < len(names):
        names = [name for name in names if name not in format.left_out]
    return text_parser(format, names)


def _of_row_groups(piece: Piece, format: Format, skip: float | None, made: Container[int]) -> Iterator[SourcePart]:
    with open_file(piece.path) as file:
        metadata = file.metadata
        first_row = sum(metadata.row_group(g).num_rows for g in range(piece.begin))
        for number, table in enumerate(_tables(file, piece, format), piece.number):
            num_rows = table.num_rows
            last = piece.end == metadata.num_row_groups and first_row + num_rows == metadata.num_rows
            part = SourcePart(piece.file, number, format.schema.empty_table(), num_rows, last=last)
            if number not in made:
                table = _typed(table, piece, format, first_row)
                if format.histories:
                    table = format.histories.added_to(table, piece.file, first_row)
                part.table = _good_rows(table, piece, format, skip, first_row)
                part.num_skipped = num_rows - part.table.num_rows
                if format.histories and format.histories.least:
                    part.table = part.table.filter(pc.not_equal(part.table.column(PLACE), LEFT_OUT))
                part.num_lines = part.table.num_rows + part.num_skipped
            yield part
            first_row += num_rows


def _tables(file: FlatFile, piece: Piece, format: Format) -> Iterator[pa.Table]:
    """Yield the rows of each part, with columns in file order."""
    names, groups, group = format.in_file, list(range(piece.begin, piece.end)), file.metadata.row_group(piece.begin)
    size = rows_a_part(group, format, piece.part_bytes)
    if len(groups) > 1 or size >= group.num_rows:
        yield file.read_row_groups(groups, columns=names, use_threads=False)
        return
    for batch in file.iter_batches(size, row_groups=groups, columns=names, use_threads=False):
        yield pa.Table.from_batches([batch])


def _typed(table: pa.Table, piece: Piece, format: Format, first_row: int) -> pa.Table:
    columns, schema, in_file = {}, format.schema, {*format.in_file}
    for field in (field for field in format.fields if field.name in in_file):
        what = f"{piece.path}: column {field.name!r}"
        try:
            columns[field.name] = _cast(table.column(field.name), field, what, first_row + 1)
        except pa.ArrowException as error:
            raise ValueError(f"{what} has values that {field.arrow_type} does not hold: {error}") from error
    return pa.table([*columns.values()], schema=pa.schema([schema.field(name) for name in columns]))


def _cast(column: pa.ChunkedArray, field: Field, what: str, first_row: int) -> pa.ChunkedArray:
    if field.values:
        return label_of(column, field.values)
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), field.arrow_type)])
    if field.role == "label" and pa.types.is_floating(value_of(column.type)):
        # Casting preserves only 0 and 1. Other values become null first, so that they are reported as bad labels.
        column = column.cast(value_of(column.type))
        whole_ones = pc.if_else(pc.is_in(column, pa.array([0, 1], column.type)), column, None)
        return whole_ones.cast(field.arrow_type)
    if field.role == "category" and str(kind_of(column.type)).endswith("numbers"):
        column = whole(column, what, first_row)
    return column.cast(value_of(column.type)).cast(field.arrow_type)


def _good_rows(table: pa.Table, piece: Piece, format: Format, skip: float | None, first_row: int) -> pa.Table:
    found = bad_values(table, format.fields)
    if found is None:
        return table
    bad_N, reason = found
    num_bad, allowed = int(bad_N.sum()), may_skip(skip, table.num_rows)
    if num_bad > allowed:
        raise ValueError(
            f"{piece.path}: row {first_row + int(np.flatnonzero(bad_N)[0]) + 1:,}: {reason}; {num_bad:,} of "
            f"{table.num_rows:,} rows of this part are skip, {allowed:,} may be skipped; correct them, or give "
            f"{'--skip-bad SHARE' if skip is None else 'a larger --skip-bad'}"
        )
    return table.filter(pa.array(~bad_N))
