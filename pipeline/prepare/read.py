"""Parts of a piece as Arrow tables: one row per line, in order; skipped lines are counted."""

from __future__ import annotations

import csv
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline.files.find import DataFile
from pipeline.files.partitions import check_equal
from pipeline.prepare import json_lines, row_groups, text
from pipeline.prepare.formats import Format
from pipeline.prepare.lines import BadLines, Parser, count_lines, parse_lines
from pipeline.prepare.pieces import Piece
from pipeline.prepare.stretches import Stretch, first_line, stretches
from pipeline.prepare.values import bad_values, label_of

RAISE = BadLines()
FOREIGN = {
    "csv": "Else name the columns that are there in --schema (NAME:skip leaves one out; skip_others = true in a schema "
    "file leaves out all that it does not name)"
}
"""Way out for a format whose header names other columns."""


@dataclass
class SourcePart:
    file: int
    number: int
    table: pa.Table
    """Table with `Format.schema`: the part's lines without the skipped ones."""
    num_lines: int
    """Number of lines without the header: `table.num_rows + num_skipped`, unless the part's number is in `made`."""
    num_skipped: int
    last: bool
    """True if the file has no later part."""
    end: int = 0
    """Bytes of the file read up to the part's end, if it is read as a stream."""


def parts(piece: Piece, format: Format, bad: BadLines = RAISE, made: Container[int] = ()) -> Iterator[SourcePart]:
    """Read the parts of a piece in order. A part whose number is in `made` is not parsed: its table is empty.

    One part is in memory at a time: its table, and for text during parsing its bytes and as much again. Raises
    ValueError, with file and line (Parquet: file and row, counted from 1), if something does not fit the format.
    """
    if format.kind == "parquet":
        for number, table, num_skipped, last in row_groups.tables(piece, format, bad, made):
            yield SourcePart(piece.file, number, table, table.num_rows + num_skipped, num_skipped, last)
        return
    inside = in_files_of(piece.path, format)
    parse = _parser(piece.path, inside)
    for stretch in stretches(piece, format):
        if stretch.number in made:
            num_lines = count_lines(stretch.text, format.newlines)
            part = SourcePart(
                piece.file, stretch.number, format.schema.empty_table(), num_lines, 0, stretch.last, stretch.end
            )
        else:
            part = _part_of(stretch, piece, inside, parse, bad)
            part.table = with_path(part.table, piece.path, format)
        # The table is all that is needed of the text, and what is made of it may take the text's memory.
        stretch.text = b""
        yield part
        # Only one part's table may be in memory.
        del part


def in_files_of(path: DataFile, format: Format) -> Format:
    """The format without those columns that a file has from its path alone."""
    names = {name for name, _ in getattr(path, "partitions", ())}
    if format.kind == "text" and names and format.has_header(path):
        names -= {*_values(path, format)}
    return replace(format, fields=tuple(f for f in format.fields if f.name not in names)) if names else format


def with_path(table: pa.Table, path: DataFile, format: Format) -> pa.Table:
    """Add the columns of the file's path to a part. Raises ValueError if one has another value in the file, or does not
    fit its type."""
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


def _part_of(stretch: Stretch, piece: Piece, format: Format, parse: Parser, bad: BadLines) -> SourcePart:
    def where(at: int) -> str:
        line = stretch.line_at(at)
        headless = line == 1 and format.kind != "json" and not format.has_header(piece.path)
        hint = " (a header? this format has none)" if headless else ""
        return f"{piece.path}: line {line:,}{hint}"

    table, num_skipped = parse_lines(stretch.text, format.newlines, parse, bad, where)
    num_lines = table.num_rows + num_skipped
    return SourcePart(piece.file, stretch.number, table, num_lines, num_skipped, stretch.last, stretch.end)


def _parser(path: DataFile, format: Format) -> Parser:
    if format.kind == "json":
        return json_lines.json_parser(format)
    if format.kind != "text":
        # Its kernels need Numba, whose import takes longer than a small preparation.
        from pipeline.prepare.sparse import sparse_parser

        return sparse_parser(format)
    names = [f.name for f in format.in_lines]
    if format.has_header(path):
        found = names_in(path, format, names)
        with suppress(ValueError, csv.Error):
            below = [values for number in (2, 3) if (values := _values(path, format, number))]
            # Lines may end in a delimiter that the header does not have.
            if below and all(len(values) == len(found) + 1 and not values[-1] for values in below):
                found.append(f"{text.NAMELESS}{len(found) + 1}")
        return text.text_parser(format, found)
    if format.left_out and len(_values(path, format)) < len(names):
        names = [name for name in names if name not in format.left_out]
    return text.text_parser(format, names)


def _values(path: DataFile, format: Format, number: int = 1) -> list[str]:
    """Values of the line with this number, without regard to line ends in quotes."""
    line = first_line(path, number).decode(errors="replace")
    try:
        return next(csv.reader([line], delimiter=format.delimiter, quotechar='"' if format.quoting else None), [])
    except csv.Error as error:
        raise ValueError(f"{path}: line {number}: lines must end in \\n or \\r\\n ({error})") from error


def names_in(path: DataFile, format: Format, names: Sequence[str]) -> list[str]:
    """Columns in the file's order, from its header. Raises ValueError if the first line is no header or names other
    columns."""
    found = [name or f"{text.NAMELESS}{number}" for number, name in enumerate(_values(path, format), 1)]
    in_path = dict(getattr(path, "partitions", ()))
    lacking = [name for name in names if name not in found and name not in format.left_out and name not in in_path]
    strangers = [] if format.skip_others else [name for name in found if name not in names]
    strangers = [name for name in strangers if not name.startswith(text.NAMELESS)]
    twice = sorted({name for name in found if found.count(name) > 1})
    if not (lacking or strangers or twice):
        return found
    problems = {"lacks": lacking, "has": strangers, "has more than once": twice}
    if lacking and {*lacking} <= {f.name for f in format.fields if f.role == "label"}:
        raise ValueError(
            f"{path}: has no column {', '.join(map(repr, lacking))}, a label; if its rows are to be scored, give "
            "--no-label"
        )
    said = ", and ".join(f"{verb} {', '.join(map(repr, names[:8]))}" for verb, names in problems.items() if names)
    raise ValueError(
        f"{path}: line 1 should name the columns of {format.name}, but {said}; is the header missing? "
        f"{FOREIGN.get(format.name, 'Else use csv, with --schema')}"
    )
