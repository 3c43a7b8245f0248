"""Conversion of delimited text to Arrow tables: pyarrow.csv with explicit types, plus checks for errors it accepts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv as pc

from pipeline.messages.sizes import format_size_down
from pipeline.prepare.formats import CALENDAR, Format
from pipeline.prepare.lines import Parser, RefusedLine, Text, count_lines, line_starts
from pipeline.prepare.values import bad_values, calendar_columns, label_of, lists_of, whole_numbers

BOM = b"\xef\xbb\xbf"
LONGEST_LINE = 1 << 20
"""Maximum line length in bytes, and block size of pyarrow.csv. Measured with Criteo's lines: blocks of 1 MiB are parsed
three times as fast as one block of 64 MiB, in half the memory."""
NAMELESS = "column without a name "
"""Prefix of the name given to a column whose name in the header is empty, as after a trailing delimiter. Such a column
is not kept, and must be empty unless it is the first: that one is an index, as written by pandas."""
ESCAPED = re.compile(rb'\\["\\]')
CONVERSION = re.compile(r"In CSV column #(\d+):.*CSV conversion error to (\S+): (?:invalid value '(.*)')?", re.DOTALL)


def text_parser(format: Format, names: Sequence[str], header: bytes = b"") -> Parser:
    """Parser of text whose lines have the columns `names`, in this order. `header`: a line that it refuses."""
    kept = [f for f in format.in_lines if f.role != "skip"]
    nameless = [name for name in names if name.startswith(NAMELESS) and name != f"{NAMELESS}1"]
    types = {f.name: pa.string() if f.values or f.many or f.form == "whole" else f.type for f in format.in_lines}
    types |= dict.fromkeys(nameless, pa.null())
    # In one call of pyarrow.csv, all columns share the null values and the decimal point.
    calls: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for field in kept:
        calls.setdefault((field.nulls, "," if field.form == "comma" else "."), []).append(field.name)
    options = {
        "read_options": pc.ReadOptions(use_threads=False, column_names=list(names), block_size=LONGEST_LINE),
        "parse_options": pc.ParseOptions(
            delimiter=format.delimiter,
            quote_char='"' if format.quoting else False,
            double_quote=format.quoting,
            newlines_in_values=format.newlines,
            # An empty line becomes a row of nulls, which is rejected because of its label.
            ignore_empty_lines=False,
        ),
    }

    def read(text: Text) -> pa.Table:
        # pyarrow.csv strips a leading byte order mark from any text, even from the middle of a file.
        marked = BOM + text if text.startswith(BOM) else text
        columns: dict[str, pa.ChunkedArray] = {}
        for (nulls, point), wanted in calls.items():
            converted = pc.ConvertOptions(
                # Checking the whole text takes a quarter of the time of checking each value.
                check_utf8=not text.isascii(),
                column_types=types,
                include_columns=[*nameless, *wanted],
                null_values=["", *nulls],
                strings_can_be_null=True,
                decimal_point=point,
            )
            try:
                found = pc.read_csv(pa.BufferReader(pa.py_buffer(marked)), convert_options=converted, **options)
            except pa.ArrowInvalid as error:
                raise RefusedLine(_in_words(str(error), names, format.name == "csv")) from error
            columns |= {name: found.column(name) for name in wanted}
        return pa.table(columns)

    def parse(text: Text) -> pa.Table:
        if not text:
            return format.schema.empty_table()
        if header and header in text and re.search(rb"(?m)^%b\r?$" % re.escape(header), text):
            raise RefusedLine("the header again, as where files were joined")
        check_bytes(text, format)
        table = read(text)
        if table.num_rows != count_lines(text, format.newlines) or (
            format.quoting and _ends_in_quote(text, format, read)
        ):
            raise RefusedLine(
                "a quote that begins a value does not end in the line; if values may contain line ends, set "
                "newlines = true in the schema"
            )
        return finished(table, format)

    return parse


def has_backslashes(text: Text, delimiters: str) -> bool:
    """True if a quote within quotes is escaped with a backslash. A backslash that just ends a value does not count."""
    between = re.escape(delimiters.encode())
    within = rb'(?m)(?:^|[%b])"(?:[^"\n]|"")*\\"(?!["%b]|\r?$)' % (between, between)
    return text.find(b'\\"') >= 0 and bool(re.search(within, text))


def with_doubled_quotes(text: Text, delimiters: str) -> Text:
    """Remove backslash escapes within quoted values, and double the quotes in them instead."""
    if text.find(b"\\") < 0:
        return text
    value = rb'(?m)(^|[%b])"([^"\\]*(?:\\(?s:.)[^"\\]*)*)"' % re.escape(delimiters.encode())
    marks = {b'\\"': b'""', b"\\\\": b"\\"}
    return re.sub(value, lambda found: b'%b"%b"' % (found[1], ESCAPED.sub(lambda one: marks[one[0]], found[2])), text)


def quotes_in(text: Text, format: Format) -> int:
    """Number of quotes that start or end a value, or are one half of a doubled quote."""
    return (ESCAPED.sub(b"", text) if format.backslashes else text).count(b'"')


def check_bytes(text: Text, format: Format) -> None:
    """Raises RefusedLine for bytes that pyarrow.csv would silently accept as part of a value or as a line end, and if
    the last value is truncated."""
    if text.find(b"\0") >= 0:
        raise RefusedLine("a NUL byte; is the file damaged?")
    if text.find(b"\r") >= 0 and text.count(b"\r") != text.count(b"\r\n"):
        raise RefusedLine("a carriage return that is not part of a line's end (\\r\\n)")
    if format.quoting and not format.backslashes and has_backslashes(text, format.delimiter):
        raise RefusedLine(
            "a quote after a backslash, within quotes; if that is meant, set backslashes = true in the schema"
        )
    if format.last_bytes and not text.endswith(b"\n"):
        last = len(text) - 1 - max(text.rfind(format.delimiter.encode()), text.rfind(b"\n"))
        if last != format.last_bytes:
            raise RefusedLine(
                f"the file ends without the end of a line, within a value: its last value has {last} bytes of "
                f"{format.last_bytes}; is the file complete?"
            )


def _ends_in_quote(text: Text, format: Format, read: Parser) -> bool:
    """True if the last line has an open quote, so that an appended empty line would become part of it. pyarrow.csv
    treats the end of the text as the closing quote."""
    begin = int(line_starts(text, True)[-2]) if format.newlines else text.rfind(b"\n", 0, len(text) - 1) + 1
    return bool(read(bytes(text[begin:]).removesuffix(b"\n") + b"\n\n").num_rows != 2)


def finished(table: pa.Table, format: Format) -> pa.Table:
    """Convert a table as read to `Format.schema`. Raises RefusedLine if a value does not fit its field."""
    made = dict(zip(table.column_names, table.columns, strict=True))
    for field in format.in_lines:
        if field.role != "skip" and (field.values or field.many or field.form == "whole"):
            column = made[field.name]
            if field.values:
                column = label_of(column, field.values)
            elif field.many and pa.types.is_string(column.type):
                column = lists_of(column, field.form, field.type, field.name)
            elif pa.types.is_string(column.type):
                column = whole_numbers(column, field.type, field.name)
            made[field.name] = column
    table = pa.table(made)
    if found := bad_values(table, [f for f in format.in_lines if f.role != "skip"]):
        raise RefusedLine(found[1])
    if format.calendar is None:
        return table.select(format.schema.names)
    columns, bad = calendar_columns(table.column(format.calendar))
    if bad.any():
        raise RefusedLine(f"column {format.calendar!r}: expected an hour written YYMMDDHH")
    for name, column in zip(CALENDAR, columns, strict=True):
        table = table.append_column(name, column)
    return table.select(format.schema.names)


def _in_words(error: str, names: Sequence[str], has_schema: bool) -> str:
    """Reword a pyarrow.csv message about a single line, with the column's name. `has_schema`: True if there is a schema
    that the user can change."""
    if found := CONVERSION.search(error):
        column, kind, value = found.groups()
        name = names[int(column)]
        if value is None:
            return f"column {name!r} is not UTF-8 (type `binary` takes any bytes)"
        if name.startswith(NAMELESS):
            return f"{value[:80]!r} is in {name}; name it in the header"
        way = f" ({name}:category in the schema takes any text; its `nulls` are the texts that are null)"
        return f"column {name!r}: {value[:80]!r} is no {kind}{way if has_schema else ''}"
    if found := re.search(r"Expected (\d+) columns, got (\d+)", error):
        return f"expected {found[1]} columns, got {found[2]}"
    if "straddling" in error:
        return f"the line is longer than {format_size_down(LONGEST_LINE)}"
    return error
