"""A sample of files of text, over the whole of each: read first as texts, in which the form of each column is found,
and then by the schema that says these forms, which is also that of `prepare`."""

from __future__ import annotations

import csv
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.doctor.sample import PLACES, spaced
from pipeline.files.find import DataFile
from pipeline.files.stores import stamp_of
from pipeline.init.columns import Look, described_text
from pipeline.init.forms import SPELLINGS, Form, form_of
from pipeline.prepare.formats import Field, Format
from pipeline.prepare.heads import check_heads, has_rows
from pipeline.prepare.json_lines import json_parser, nested, read_objects
from pipeline.prepare.lines import RefusedLine, Text, parse_lines
from pipeline.prepare.pieces import Piece, codec_of, is_stream
from pipeline.prepare.read import SourcePart, parts, place_of
from pipeline.prepare.schema import Role, roles_of
from pipeline.prepare.stretches import first_line, open_text, stretches
from pipeline.prepare.text import has_backslashes, with_doubled_quotes
from pipeline.prepare.times import DAYS
from pipeline.records import I64

SAMPLE_BYTES = 32 << 20
"""Bytes of the sample."""
STREAM_BYTES, EXPANDED = 128 << 20, 5
"""Maximum number of bytes of text that the sample of a file is taken from if the file can only be read from its
beginning; and how many times larger than a compressed file its text is expected to be."""
DELIMITERS = ",\t;|"
OF_HIVE = "\x01"
"""Delimiter of Hive, which is in no other text."""
NO_FIELD = "\0"
"""Name of a field that no object has."""
HEAD_BYTES = 1 << 16
NO_NAME = re.compile(r"\s*([-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?)\s*")
"""Numbers and times, which are no names of columns."""
VOWPAL = re.compile(r"[-+]?\d+(\.\d+)?( [^|]*)?((\|[^|\s]+( [^|\s]+)+ *)+|\| [^|\s]+( [^|\s]+)+ *)")
"""Line of Vowpal Wabbit: a label, then features separated by blanks, in groups that begin with | and a name."""
TOTAL = re.compile(r"(grand[ _-]?|sub[ _-]?)?totals?\b.*|sum|summe|gesamt\w*", re.IGNORECASE)
"""Text in the last line of a table that sums up the lines before."""


def look_at_text(paths: Sequence[DataFile], most: int, skip: float | None = None) -> Look:
    """Look at files of delimited text, or of objects of JSON, of which at most so many are read. The rows of each are
    estimated from the bytes of those in the sample. Raises ValueError, with file and line, if they are neither, of
    several shapes, or not as `prepare` could read them."""
    paths = [path for path in paths if stamp_of(str(path)).size] or paths
    check_heads(paths, Format("csv", "text", ()))
    if (first := _first_line(paths[0]).lstrip()).startswith(("[{", "{")):
        if first.startswith("["):
            raise ValueError(f"{paths[0]} is a JSON array; write one object per line, as `jq -c '.[]'` does")
        chosen = spaced(range(len(paths)), most)
        format, forms = _of_json([paths[number] for number in chosen], skip)
        options: dict[str, Any] = {"nulls": SPELLINGS}
    else:
        format = _delimited(paths[0])
        paths = [path for path in paths if has_rows(path, format)] or paths
        try:
            check_heads(paths, format)
        except ValueError as error:
            raise ValueError(
                f"{error}; `init` needs files with the same columns, and leaves out only files without the"
                " column that --label names"
            ) from error
        chosen = spaced(range(len(paths)), most)
        format, table = _with_quotes(paths, chosen, format, skip)
        forms = {name: form_of(name, table.column(name)) for name in table.column_names}
        names = ("delimiter", "header", "newlines", *(("backslashes",) if format.backslashes else ()))
        options = {name: getattr(format, name) for name in names} | {"nulls": SPELLINGS}
    for name in dict.fromkeys(name for path in paths for name, _ in path.partitions):
        values = [dict(path.partitions).get(name) for path in paths]
        forms.setdefault(name, form_of(name, pa.chunked_array([pa.array(values, pa.string())])))
    fields = [_field(name, form) for name, form in forms.items()]
    table, file_of, rows = _read(paths, chosen, replace(format, fields=tuple(fields)), skip)
    columns = tuple(described_text(name, table.column(name), form) for name, form in forms.items())
    return Look(tuple(paths), rows, table, file_of, columns, options.get("delimiter", ""), options)


def _with_quotes(
    paths: Sequence[DataFile], chosen: Sequence[int], format: Format, skip: float | None
) -> tuple[Format, pa.Table]:
    """The format with what is within quotes, line ends or quotes with a backslash, and the sample read by it."""
    errors = []
    for backslashes, newlines in product((False, True), repeat=2):
        changed = replace(format, backslashes=backslashes, newlines=newlines)
        try:
            return changed, _read(paths, chosen, changed, skip)[0]
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def _field(name: str, form: Form) -> Field:
    """Field of a column as a number if it may be one, else as a category: times are compared later."""
    role: Role = "number" if "number" in form.types else "category"
    found = roles_of([f"{name}:{role}:{form.types.get(role, 'string')}"])[0]
    nulls = SPELLINGS if role == "number" or form.types.get("time") in DAYS else ()
    return Field(name, role, found.type, found.many, None, found.form, nulls)


def _read(
    paths: Sequence[DataFile], chosen: Sequence[int], format: Format, skip: float | None
) -> tuple[pa.Table, I64, tuple[int, ...]]:
    """Table of the sample, and the number of the file of each row; and the estimated rows of all files."""
    tables, sizes, lines, seen = [format.schema.empty_table()], [], 0, 0
    for number in chosen:
        before = len(tables)
        for part, num_bytes in _parts(paths[number], format, SAMPLE_BYTES // len(chosen), skip):
            tables.append(part.table)
            lines, seen = lines + part.num_lines, seen + num_bytes
            if part.last:
                _refuse_total(paths[number], part.table)
        sizes.append(sum(table.num_rows for table in tables[before:]))
    rows = tuple(round(lines * stamp_of(str(path)).size / max(1, seen)) for path in paths)
    return pa.concat_tables(tables), np.repeat(chosen, sizes), rows


def _parts(path: DataFile, format: Format, wanted: int, skip: float | None) -> Iterator[tuple[SourcePart, int]]:
    """Parts of a file that cover about `wanted` bytes of it, each with the bytes of the file that it took."""
    for piece, passed in _pieces(path, format, wanted):
        before = 0
        for part in parts(piece, format, skip, passed):
            # Of a stream, `end` is the place in the file.
            yield part, part.end - before if part.end else piece.end - piece.begin
            before = part.end
            if part.number * piece.part_bytes > STREAM_BYTES:
                break


def _pieces(path: DataFile, format: Format, wanted: int) -> list[tuple[Piece, Container[int]]]:
    """Pieces over the whole of a file, and the numbers of their parts that are passed over."""
    size, width = stamp_of(str(path)).size, max(1, wanted // PLACES)
    if is_stream(path, format):
        text = min(STREAM_BYTES, size * (EXPANDED if codec_of(path) else 1))
        step = -(-text // wanted)
        return [(Piece(0, path, 0, 0, size, width), {n for n in range(STREAM_BYTES // width + 2) if n % step})]
    if size <= wanted:
        return [(Piece(0, path, 0, 0, size, size), ())]
    begins = [place * (size - width) // (PLACES - 1) for place in range(PLACES)]
    return [(Piece(0, path, number, begin, begin + width, width), ()) for number, begin in enumerate(begins)]


def _refuse_total(path: DataFile, table: pa.Table) -> None:
    """Raises ValueError if the last row is that of totals: a word for them, which is in no other row of its column."""
    for name in table.column_names if len(table) > 1 else ():
        column, text = table.column(name), table.column(name)[-1].as_py()
        if isinstance(text, str) and TOTAL.fullmatch(text) and pc.sum(pc.equal(column, text)).as_py() == 1:
            raise ValueError(
                f"{path}: the last line is a total of the others: column {name!r} is {text!r} there and nowhere else; "
                "remove the line from the file"
            )


def _delimited(path: DataFile) -> Format:
    """Format whose columns are all texts, from the first lines of a file."""
    lines = _lines(path)
    if lines and all(VOWPAL.fullmatch(line.rstrip("\r\n")) for line in lines):
        raise ValueError(
            f"{path} is text of Vowpal Wabbit; write a column for each namespace, as CSV, or `label index:value ...` "
            "for `pipeline prepare libsvm`"
        )
    delimiter = _delimiter(lines)
    first, *others = csv.reader(lines, delimiter=delimiter)
    header = _is_header(first)
    if header:
        first = [name.strip() for name in first]
    twice = [name for name in dict.fromkeys(first) if name and first.count(name) > 1]
    if header and twice:
        # Of a line of names no text is in the lines below it.
        if any(set(first) & set(other) for other in others):
            header = False
        else:
            raise ValueError(f"{path}: line 1 names {', '.join(map(repr, twice))} more than once; rename all but one")
    names = [name for name in first if name] if header else [f"c{n}" for n in range(1, len(first) + 1)]
    return Format(
        "csv", "text", tuple(Field(n, "category", pa.string()) for n in names), delimiter, header, quoting=True
    )


def header_of(path: DataFile) -> list[str]:
    """Names in the first line of delimited text; none if it has no header, or cannot be read, which `look_at_text`
    says."""
    try:
        format = _delimited(path)
    except (ValueError, csv.Error):
        return []
    return [field.name for field in format.fields] if format.header else []


def _delimiter(lines: Sequence[str]) -> str:
    """The character that divides all first lines into the same number of columns."""
    if OF_HIVE in lines[0]:
        return OF_HIVE
    same = []
    for delimiter in DELIMITERS:
        widths = {len(row) for row in csv.reader(lines, delimiter=delimiter) if row}
        if len(widths) == 1 and max(widths) > 1:
            same.append(delimiter)
    if {",", ";"} <= {*same} and not any(re.search(r"\D,|,\D", line) for line in lines):
        # All commas are decimal ones.
        return ";"
    return max(same or DELIMITERS, key=lines[0].count)


def _lines(path: DataFile) -> list[str]:
    """The first lines of a file, of those that are whole."""
    with open_text(path)[0] as file:
        text = file.read(HEAD_BYTES)
    whole = text if len(text) < HEAD_BYTES else text[: text.rfind(b"\n") + 1] or text
    if has_backslashes(whole, DELIMITERS):
        whole = bytes(with_doubled_quotes(whole, DELIMITERS))
    return whole.decode(errors="replace").removeprefix("\ufeff").splitlines(keepends=True)


def _first_line(path: DataFile) -> str:
    line = first_line(path)
    if b"\0" in line:
        raise ValueError(f"{path} is neither Parquet nor text; `pipeline prepare` reads other formats and .gz and .zst")
    return line.decode(errors="replace")


def _is_header(names: Sequence[str]) -> bool:
    """True if no value of a line is a number, a time or empty; the first and the last ones may be empty."""
    last = max((n for n, name in enumerate(names) if name), default=-1)
    return last >= 0 and all(
        (name or n == 0) and not NO_NAME.fullmatch(name) for n, name in enumerate(names[: last + 1])
    )


def _of_json(paths: Sequence[DataFile], skip: float | None) -> tuple[Format, dict[str, Form]]:
    """Format without fields, and the form of each field that can be read; those of inner objects have dotted names."""
    format = Format("json", "json", ())
    check = json_parser(replace(format, fields=(Field(NO_FIELD, "category", pa.string()),)))

    def checked(lines: Text) -> pa.Table:
        check(lines)
        return pa.table({"lines": [bytes(lines)]})

    text = bytearray()
    for path in paths:
        for piece, passed in _pieces(path, format, SAMPLE_BYTES // len(paths)):
            for stretch in stretches(piece, format):
                if stretch.number not in passed:
                    where = partial(place_of, stretch, path, format)
                    good = parse_lines(stretch.text, False, checked, skip, where)[0]["lines"][0].as_py()
                    text += good if good.endswith(b"\n") else good + b"\n"
    try:
        table = read_objects(text)
    except RefusedLine as error:
        raise ValueError(
            f"{paths[0]}: {error}, in a sample of the lines of all files; write the field in one form in all files, or "
            "give only the other fields to `pipeline prepare json --schema`"
        ) from error
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    forms = {name: _json_form(name, table.column(at), text) for at, name in enumerate(table.column_names) if name}
    if left_out := [name for name, form in forms.items() if not form.types]:
        print(f"left out, since no workflow reads lists of them, or they are all null: {', '.join(left_out)}")
    return format, {name: form for name, form in forms.items() if form.types}


def _json_form(name: str, column: pa.ChunkedArray, text: Text) -> Form:
    kind = column.type
    if pa.types.is_int64(kind):
        return Form({"number": "int64", "category": "int64", "time": "int64"})
    if pa.types.is_floating(kind):
        schema = nested([Field(name, "category", pa.uint64())])
        try:
            # Whole numbers beyond 63 bits are read as floats unless they are asked for.
            read_objects(text, schema)
            return Form({"category": "uint64"})
        except RefusedLine:
            return Form({"number": "float32", "category": "whole", "time": "float64"})
    if pa.types.is_boolean(kind):
        return Form({"number": "bool"})
    if pa.types.is_timestamp(kind):
        return Form({"time": "iso", "category": "string"})
    if pa.types.is_list(kind) and kind.value_type in (pa.int64(), pa.string()):
        return Form({"category": f"{kind.value_type}[json]"})
    if not pa.types.is_string(kind):
        return Form()
    form = form_of(name, column)
    if "number" not in form.types:
        return form
    found = {"whole": "int64", "float32": "float32"}.get(form.types["number"], "")
    # Numbers in quotes; others than these are text.
    number: dict[Role, str] = {"number": found, "time": found.replace("32", "64")} if found else {}
    return replace(form, types={**number, "category": "string"})
