"""Parts of Parquet files: the named columns with the types of the format; rows with bad values are refused."""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.files import open_file
from pipeline.files.flat import FlatFile
from pipeline.files.types import kind_of, value_of, whole
from pipeline.prepare.formats import Field, Format
from pipeline.prepare.histories import LEFT_OUT, PLACE
from pipeline.prepare.lines import BadLines
from pipeline.prepare.pieces import Piece, bytes_of, num_parts, rows_a_part
from pipeline.prepare.values import bad_values, label_of


def tables(
    piece: Piece, format: Format, bad: BadLines, made: Container[int]
) -> Iterator[tuple[int, pa.Table, int, bool]]:
    """Number, table, number of skipped rows, and True for the file's last part, for each part of a piece. Raises
    ValueError, with file and row, if more rows are bad than allowed."""
    with open_file(piece.path) as file:
        metadata = file.metadata
        first_row = sum(metadata.row_group(g).num_rows for g in range(piece.begin))
        for at, table in enumerate(_read(file, piece, format)):
            number, num_rows = piece.number + at, table.num_rows
            last = piece.end == metadata.num_row_groups and first_row + num_rows == metadata.num_rows
            if number in made:
                yield number, format.schema.empty_table(), 0, last
            else:
                typed = _typed(table, piece, format, first_row)
                if format.histories:
                    typed = format.histories.added_to(typed, piece.file, first_row)
                good = _good_rows(typed, piece, format, bad, first_row)
                num_skipped = num_rows - good.num_rows
                if format.histories and format.histories.least:
                    good = good.filter(pc.not_equal(good.column(PLACE), LEFT_OUT))
                yield number, good, num_skipped, last
            first_row += num_rows


def _read(file: FlatFile, piece: Piece, format: Format) -> Iterator[pa.Table]:
    names, groups = format.in_file, range(piece.begin, piece.end)
    first = file.metadata.row_group(piece.begin)
    num_bytes = bytes_of(first, format)
    count = num_parts(first.num_rows, num_bytes, piece.part_bytes) if len(groups) == 1 else 1
    try:
        # pyarrow returns the columns in the order of the file; `_typed` puts them into that of the format.
        if count == 1:
            yield file.read_row_groups(list(groups), columns=names, use_threads=False)
            return
        size = rows_a_part(first.num_rows, num_bytes, piece.part_bytes)
        for batch in file.iter_batches(size, row_groups=list(groups), columns=names, use_threads=False):
            yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{piece.path}: row group {piece.begin}: cannot be read, is it complete? ({error})") from error


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
        # A cast keeps only 0 and 1 as they were. Others become null here, so that they are reported as bad labels.
        column = column.cast(value_of(column.type))
        whole_ones = pc.if_else(pc.is_in(column, pa.array([0, 1], column.type)), column, None)
        return whole_ones.cast(field.arrow_type)
    if field.role == "category" and str(kind_of(column.type)).endswith("numbers"):
        column = whole(column, what, first_row)
    return column.cast(value_of(column.type)).cast(field.arrow_type)


def _good_rows(table: pa.Table, piece: Piece, format: Format, bad: BadLines, first_row: int) -> pa.Table:
    found = bad_values(table, format.fields)
    if found is None:
        return table
    bad_N, reason = found
    num_bad, allowed = int(bad_N.sum()), bad.allowed(table.num_rows)
    if num_bad > allowed:
        raise ValueError(
            f"{piece.path}: row {first_row + int(np.flatnonzero(bad_N)[0]) + 1:,}: {reason}; {num_bad:,} of "
            f"{table.num_rows:,} rows of this part are bad, {allowed:,} may be skipped; correct them, or give "
            f"{'--skip-bad SHARE' if bad.share is None else 'a larger --skip-bad'}"
        )
    return table.filter(pa.array(~bad_N))
