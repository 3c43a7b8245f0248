"""Conversion of delimited text to Arrow tables: pyarrow.csv with all types given, and checks for what it lets pass."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv as pc

from pipeline.messages.sizes import format_size_down
from pipeline.prepare.formats import CALENDAR, Format
from pipeline.prepare.lines import Parser, RefusedLine, Text, count_lines, line_starts
from pipeline.prepare.values import bad_values, calendar_columns, label_of

BOM = b"\xef\xbb\xbf"
LONGEST_LINE = 1 << 20
"""Maximum bytes of a line, and block size of pyarrow.csv: measured with Criteo's lines, blocks of 1 MiB are parsed
three times as fast as one block of 64 MiB, in half of the memory."""
CONVERSION = re.compile(r"In CSV column #(\d+):.*CSV conversion error to (\S+): (?:invalid value '(.*)')?", re.DOTALL)


def text_parser(format: Format, names: Sequence[str]) -> Parser:
    """Parser of text whose lines have the columns `names`, in this order."""
    types = {f.name: pa.string() if f.values else f.type for f in format.in_lines}
    spelled = {f.name: f.values for f in format.in_lines if f.values}
    kept = [f.name for f in format.in_lines if f.role != "skip"]
    options = {
        "read_options": pc.ReadOptions(use_threads=False, column_names=list(names), block_size=LONGEST_LINE),
        "parse_options": pc.ParseOptions(
            delimiter=format.delimiter,
            quote_char='"' if format.quoting else False,
            double_quote=format.quoting,
            newlines_in_values=format.newlines,
            # An empty line becomes a row of nulls, whose label is refused.
            ignore_empty_lines=False,
        ),
    }
    convert = {"column_types": types, "include_columns": kept, "null_values": [""], "strings_can_be_null": True}

    def read(text: Text) -> pa.Table:
        # pyarrow.csv strips a byte order mark from any text that begins with it, also in the middle of a file.
        marked = BOM + text if text.startswith(BOM) else text
        # Looking at a text as a whole takes a quarter of the time of looking at each of its values.
        converted = pc.ConvertOptions(check_utf8=not text.isascii(), **convert)
        try:
            table = pc.read_csv(pa.BufferReader(pa.py_buffer(marked)), convert_options=converted, **options)
        except pa.ArrowInvalid as error:
            raise RefusedLine(_in_words(str(error), names)) from error
        for name, values in spelled.items():
            table = table.set_column(table.column_names.index(name), name, label_of(table.column(name), values))
        return table

    def parse(text: Text) -> pa.Table:
        if not text:
            return format.schema.empty_table()
        _check_bytes(text, format)
        table = read(text)
        if table.num_rows != count_lines(text, format.newlines) or (
            format.quoting and _ends_in_quote(text, format, read)
        ):
            raise RefusedLine(
                "a quote that begins a value does not end in the line; if values may contain line ends, set "
                "newlines = true in the schema"
            )
        return _finished(table, format)

    return parse


def _check_bytes(text: Text, format: Format) -> None:
    """Refuse bytes that pyarrow.csv would silently take as part of a value or as the end of a line."""
    if text.find(b"\0") >= 0:
        raise RefusedLine("a NUL byte; is the file damaged?")
    if text.find(b"\r") >= 0 and text.count(b"\r") != text.count(b"\r\n"):
        raise RefusedLine("a carriage return that is not part of a line's end (\\r\\n)")
    if format.last_bytes and not text.endswith(b"\n"):
        last = len(text) - 1 - max(text.rfind(format.delimiter.encode()), text.rfind(b"\n"))
        if last != format.last_bytes:
            raise RefusedLine(
                f"the file ends without the end of a line, within a value: its last value has {last} bytes of "
                f"{format.last_bytes}; is the file complete?"
            )


def _ends_in_quote(text: Text, format: Format, read: Parser) -> bool:
    """True if the last line has an open quote, so that an empty line appended to it would become part of it.
    pyarrow.csv takes the end of a text as the end of a quote."""
    begin = int(line_starts(text, True)[-2]) if format.newlines else text.rfind(b"\n", 0, len(text) - 1) + 1
    return bool(read(bytes(text[begin:]).removesuffix(b"\n") + b"\n\n").num_rows != 2)


def _finished(table: pa.Table, format: Format) -> pa.Table:
    if found := bad_values(table, [f for f in format.in_lines if f.role != "skip"]):
        raise RefusedLine(found[1])
    if format.calendar is None:
        return table
    columns, bad = calendar_columns(table.column(format.calendar))
    if bad.any():
        raise RefusedLine(f"column {format.calendar!r}: expected an hour written YYMMDDHH")
    for name, column in zip(CALENDAR, columns, strict=True):
        table = table.append_column(name, column)
    return table.select(format.schema.names)


def _in_words(error: str, names: Sequence[str]) -> str:
    """Message of pyarrow.csv about a single line, reworded with the column's name."""
    if found := CONVERSION.search(error):
        column, kind, value = found.groups()
        what = "is not UTF-8 (type `binary` takes any bytes)" if value is None else f"{value[:80]!r} is no {kind}"
        return f"column {names[int(column)]!r}: {what}"
    if found := re.search(r"Expected (\d+) columns, got (\d+)", error):
        return f"expected {found[1]} columns, got {found[2]}"
    if "straddling" in error:
        return f"the line is longer than {format_size_down(LONGEST_LINE)}"
    return error
