"""Sample of text files, spread over the whole of each file. It is first read as text to detect the form of each column,
then read again with the resulting schema, which `prepare` uses as well."""

from __future__ import annotations

import csv
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.find import DataFile
from pipeline.files.stores import stamp_of
from pipeline.init.columns import Look, described_text, unread_column, with_unread
from pipeline.init.forms import SPELLINGS, Form, form_of
from pipeline.prepare.formats import Field, Format
from pipeline.prepare.heads import OBJECTS, check_heads, has_rows
from pipeline.prepare.json_lines import json_parser, nested, read_objects
from pipeline.prepare.lines import RefusedLine, Text, parse_lines
from pipeline.prepare.read import SourcePart, parts, place_of
from pipeline.prepare.schema import DAYS, Role, roles_of
from pipeline.prepare.stretches import Piece, codec_of, first_line, is_stream, open_text, stretches
from pipeline.prepare.text import has_backslashes, with_doubled_quotes
from pipeline.records import I64

LOOKED_AT_FILES = 48
"""Maximum number of sampled files."""
SAMPLE_BYTES, PLACES = 32 << 20, 16
"""Size of the sample in bytes; and the number of places in a file that it is read from."""
STREAM_BYTES, EXPANDED = 64 << 20, 5
"""Maximum bytes of text read for the sample of a file that can only be read sequentially; and the expected ratio of
text size to compressed size."""
DELIMITERS = ",\t;|"
OF_HIVE = "\x01"
"""Hive's delimiter, which does not occur in other text."""
NO_FIELD = "\0"
"""Field name that does not occur in objects."""
HEAD_BYTES = 1 << 16
NO_NAME = re.compile(r"\s*([-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?)\s*")
"""Pattern of numbers and times, which are not column names."""
VOWPAL = re.compile(r"[-+]?\d+(\.\d+)?( [^|]*)?((\|[^|\s]+( [^|\s]+)+ *)+|\| [^|\s]+( [^|\s]+)+ *)")
"""Pattern of a Vowpal Wabbit line: a label, then features separated by blanks, in groups that start with | and a name.
"""
CHANGED = re.compile(r"column '(.*?)' changed from", re.DOTALL)
"""Message about a field of JSON that has values of several kinds."""
TOTAL = re.compile(r"(grand[ _-]?|sub[ _-]?)?totals?\b.*|sum|summe|gesamt\w*", re.IGNORECASE)
"""Pattern of text in the last line of a table that contains totals."""


def chosen_files(paths: Sequence[DataFile]) -> list[int]:
    """Indices of the files to sample, in order: one for each value of the partitions, those with the fewest values
    first, and others. They are drawn by hashes of their paths, since a regular choice may coincide with a regular
    layout of folders: every 24th file may be of one hour."""
    shared = len(os.path.commonpath([*map(str, paths)]))
    drawn = sorted(range(len(paths)), key=lambda number: zlib.crc32(str(paths[number])[shared:].encode()))
    if len(paths) <= LOOKED_AT_FILES:
        return sorted(drawn)
    file_of = {pair: number for number in reversed(drawn) for pair in paths[number].partitions}
    num_values = Counter(name for name, _ in file_of)
    chosen, seen = dict[int, None](), set[tuple[str, str | None]]()
    for pair, number in sorted(file_of.items(), key=lambda item: num_values[item[0][0]]):
        if pair not in seen:
            chosen[number] = None
            seen.update(paths[number].partitions)
    return sorted([*(chosen | dict.fromkeys(drawn))][:LOOKED_AT_FILES])


def look_at_text(paths: Sequence[DataFile], skip: float | None = None, unread: Collection[str] = ()) -> Look:
    """Inspect files of delimited text or JSON objects (see `look_at_files`). The number of rows of each file is
    estimated from the bytes per row of the sample. Raises ValueError, with file and line, if the files are of another
    kind, have different columns, or cannot be read by `prepare`."""
    paths = [path for path in paths if stamp_of(str(path)).size] or paths
    check_heads(paths, Format("csv", "text", ()))
    if OBJECTS.match(_first_line(paths[0]).encode()):
        check_heads(paths, Format("json", "json", ()))
        chosen = chosen_files(paths)
        format, forms, notes = _of_json([paths[number] for number in chosen], skip, unread)
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
        chosen, notes = chosen_files(paths), {}
        fields = [field._replace(role="skip") if field.name in unread else field for field in format.fields]
        format, table = _with_quotes(paths, chosen, replace(format, fields=tuple(fields)), skip)
        forms = {name: form_of(name, table.column(name)) for name in table.column_names}
        syntax = ("delimiter", "header", "newlines", *(("backslashes",) if format.backslashes else ()))
        options = {name: getattr(format, name) for name in syntax} | {"nulls": SPELLINGS}
    in_paths = dict.fromkeys(name for path in paths for name, _ in path.partitions)
    for name in (name for name in in_paths if name not in unread):
        values = [dict(path.partitions).get(name) for path in paths]
        forms.setdefault(name, form_of(name, pa.chunked_array([pa.array(values, pa.string())])))
    names = dict.fromkeys([*(field.name for field in format.fields), *forms, *notes, *in_paths])
    skipped = Field("", "skip", pa.string())
    fields = [_field(n, forms[n]) if n in forms else skipped._replace(name=n) for n in names]
    table, file_of, rows = _read(paths, chosen, replace(format, fields=tuple(fields)), skip)
    columns = tuple(
        described_text(n, table.column(n), forms[n])
        if n in forms else unread_column(n, pa.string(), len(table), notes.get(n, ""))
        for n in names
    )  # fmt: skip
    sample = with_unread(table, columns)
    return Look(tuple(paths), rows, sample, file_of, columns, options.get("delimiter", ""), options)


def _with_quotes(
    paths: Sequence[DataFile], chosen: Sequence[int], format: Format, skip: float | None
) -> tuple[Format, pa.Table]:
    """Detect whether quoted values contain newlines or backslash-escaped quotes. Return the format with these settings,
    and the sample read with it."""
    errors = []
    for backslashes, newlines in product((False, True), repeat=2):
        changed = replace(format, backslashes=backslashes, newlines=newlines)
        try:
            return changed, _read(paths, chosen, changed, skip)[0]
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def _field(name: str, form: Form) -> Field:
    """Field that reads a column as a number if possible, else as a category: times are compared later."""
    role: Role = "number" if "number" in form.types else "category"
    found = roles_of([f"{name}:{role}:{form.types.get(role, 'string')}"])[0]
    nulls = SPELLINGS if role == "number" or form.types.get("time") in DAYS else ()
    return Field(name, role, found.type, found.many, None, found.form, nulls)


def _read(
    paths: Sequence[DataFile], chosen: Sequence[int], format: Format, skip: float | None
) -> tuple[pa.Table, I64, tuple[int, ...]]:
    """Table of the sample, the file index of each row, and the estimated number of rows of each file."""
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
    """Yield parts that cover about `wanted` bytes of a file, each with the number of file bytes it covers."""
    for piece, passed in _pieces(path, format, wanted):
        before = 0
        for part in parts(piece, format, skip, passed):
            # For a stream, `end` is the position in the file.
            yield part, part.end - before if part.end else piece.end - piece.begin
            before = part.end
            if part.number * piece.part_bytes > STREAM_BYTES:
                break


def _pieces(path: DataFile, format: Format, wanted: int) -> list[tuple[Piece, Container[int]]]:
    """Pieces drawn from the whole file, including its ends, each with the numbers of the parts to skip."""
    size, width = stamp_of(str(path)).size, max(1, wanted // PLACES)
    draw = np.random.default_rng(zlib.crc32(path.name.encode()))
    if is_stream(path, format):
        text = min(STREAM_BYTES, size * (EXPANDED if codec_of(path) else 1))
        step = -(-text // wanted)
        blocks = np.arange(0, STREAM_BYTES // width + 2, step)
        read = {0, *(blocks + draw.integers(step, size=len(blocks))).tolist()}
        return [(Piece(0, path, 0, 0, size, width), {n for n in range(STREAM_BYTES // width + 2) if n not in read})]
    if size <= wanted:
        return [(Piece(0, path, 0, 0, size, size), ())]
    gap = (size - width) / (PLACES - 1)
    # Pieces must not overlap, or keys would seem to recur.
    inner = np.arange(1, PLACES - 1) * gap + draw.uniform(-0.5, 0.5, PLACES - 2) * (gap - width)
    begins = [0, *inner.astype(int).tolist(), size - width]
    return [(Piece(0, path, number, begin, begin + width, width), ()) for number, begin in enumerate(begins)]


def _refuse_total(path: DataFile, table: pa.Table) -> None:
    """Raises ValueError if the last row contains totals: a word for "total" that occurs nowhere else in its column."""
    for name in table.column_names if len(table) > 1 else ():
        column, text = table.column(name), table.column(name)[-1].as_py()
        if isinstance(text, str) and TOTAL.fullmatch(text) and pc.sum(pc.equal(column, text)).as_py() == 1:
            raise ValueError(
                f"{path}: the last line is a total of the others: column {name!r} is {text!r} there and nowhere else; "
                "remove the line from the file"
            )


def _delimited(path: DataFile) -> Format:
    """Format with only text columns, detected from the first lines of a file."""
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
        # If values of the first line recur below it, it is not a header.
        if any(set(first) & set(other) for other in others):
            header = False
        else:
            raise ValueError(f"{path}: line 1 names {', '.join(map(repr, twice))} more than once; rename all but one")
    names = [name for name in first if name] if header else [f"c{n}" for n in range(1, len(first) + 1)]
    return Format(
        "csv", "text", tuple(Field(n, "category", pa.string()) for n in names), delimiter, header, quoting=True
    )


def header_of(path: DataFile) -> list[str]:
    """Names in the header of delimited text; empty if there is no header, or the text cannot be read, which
    `look_at_text` reports."""
    try:
        format = _delimited(path)
    except (ValueError, csv.Error):
        return []
    return [field.name for field in format.fields] if format.header else []


def _delimiter(lines: Sequence[str]) -> str:
    """Character that splits all of the first lines into the same number of columns."""
    if OF_HIVE in lines[0]:
        return OF_HIVE
    same = []
    for delimiter in DELIMITERS:
        widths = {len(row) for row in csv.reader(lines, delimiter=delimiter) if row}
        if len(widths) == 1 and max(widths) > 1:
            same.append(delimiter)
    if {",", ";"} <= {*same} and not any(re.search(r"\D,|,\D", line) for line in lines):
        # All commas are decimal commas.
        return ";"
    return max(same or DELIMITERS, key=lines[0].count)


def _lines(path: DataFile) -> list[str]:
    """Complete lines at the start of a file."""
    with open_text(path)[0] as file:
        text = file.read(HEAD_BYTES)
    whole = text if len(text) < HEAD_BYTES else text[: text.rfind(b"\n") + 1] or text
    if has_backslashes(whole, DELIMITERS):
        whole = bytes(with_doubled_quotes(whole, DELIMITERS))
    return whole.decode(errors="replace").removeprefix("\ufeff").splitlines(keepends=True)


def _first_line(path: DataFile) -> str:
    line = first_line(path)
    if b"\0" in line:
        raise ValueError(
            f"{path} is neither Parquet nor text: write it as Parquet, of Lance in Python by "
            "pyarrow.parquet.write_table(lance.dataset(FOLDER).to_table(), FILE); `pipeline prepare` reads other "
            "formats of text, and .gz and .zst"
        )
    return line.decode(errors="replace")


def _is_header(names: Sequence[str]) -> bool:
    """True if no value of a line is a number, a time or empty. The first value and trailing ones may be empty."""
    last = max((n for n, name in enumerate(names) if name), default=-1)
    return last >= 0 and all(
        (name or n == 0) and not NO_NAME.fullmatch(name) for n, name in enumerate(names[: last + 1])
    )


def _of_json(
    paths: Sequence[DataFile], skip: float | None, unread: Collection[str]
) -> tuple[Format, dict[str, Form], dict[str, str]]:
    """Format without fields, the form of each readable field, and the reason why each other one is not read, which is
    empty for those of `unread`. Nested fields have dotted names."""
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
    notes = {name: "" for name in unread if _dropped(text, name)}
    while True:
        try:
            table = read_objects(text)
            break
        except RefusedLine as error:
            said = (
                f"{paths[0]}: {error}, in a sample of the lines of all files; write the field in one form in all files"
            )
            found = CHANGED.match(str(error))
            if not found or not _dropped(text, found[1]):
                raise ValueError(said) from error
            notes[found[1]] = said
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    forms = {name: _json_form(name, table.column(at), text) for at, name in enumerate(table.column_names) if name}
    if left_out := [name for name, form in forms.items() if not form.types]:
        print(f"left out, since no workflow reads lists of them, or they are all null: {', '.join(left_out)}")
    return format, {name: form for name, form in forms.items() if form.types}, notes


def _dropped(text: bytearray, name: str) -> bool:
    """Remove a field, which may be nested, from all objects. Return True if some had it."""
    objects, found = [json.loads(line) for line in text.splitlines()], False
    for fields in objects:
        *path, last = [name] if name in fields else name.split(".")
        for step in path:
            fields = fields.get(step) if isinstance(fields, dict) else None
        if isinstance(fields, dict) and last in fields:
            found = True
            del fields[last]
    if found:
        text[:] = b"".join(json.dumps(one).encode() + b"\n" for one in objects)
    return found


def _json_form(name: str, column: pa.ChunkedArray, text: Text) -> Form:
    kind = column.type
    if pa.types.is_int64(kind):
        return Form({"number": "int64", "category": "int64", "time": "int64"})
    if pa.types.is_floating(kind):
        schema = nested([Field(name, "category", pa.uint64())])
        try:
            # Integers beyond 63 bits are read as floats unless uint64 is requested.
            read_objects(text, schema)
            return Form({"category": "uint64"})
        except RefusedLine:
            if pc.all(pc.equal(column, pc.trunc(column))).as_py() and pc.max(pc.abs(column)).as_py() >= 2**63:
                note = f"{name}: whole numbers beyond 64 bits are read as text; {name}:number in the schema rounds them"
                return Form({"category": "string"}, note)
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
    # Numbers in quotes; other types are text.
    number: dict[Role, str] = {"number": found, "time": found.replace("32", "64")} if found else {}
    return replace(form, types={**number, "category": "string"})
