"""Conversion of JSON objects, one per line, to Arrow tables: pyarrow.json with explicit types, plus checks for errors
that it accepts. A dotted name refers to a field of a nested object; a field of exactly that name takes precedence."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pipeline.messages.sizes import format_size_down
from pipeline.prepare.formats import Field, Format
from pipeline.prepare.lines import Parser, RefusedLine, Text, count_lines, line_starts
from pipeline.prepare.text import LONGEST_LINE, check_bytes, finished
from pipeline.prepare.values import label_of, whole_numbers

BLANK = b" \t\r\n"
AS_TEXT = "; NAME:category in the schema takes it as text"
CHANGED = re.compile(r"column (.*) changed from (?:(?:number|boolean) to string|string to (number))", re.DOTALL)
"""pyarrow.json's message, as reworded by `_in_words`, about a number or boolean in quotes, or text without them."""


def json_parser(format: Format) -> Parser:
    """Parser of lines with one object each. Fields not named by the format are ignored; absent fields are null. Numbers
    may be quoted, as BigQuery writes them, if all numbers of the field are. In a field of text they are text."""
    fields = [field for field in format.fields if field.role != "skip"]
    as_text, of_text = set[str](), set[str]()
    # Names as they occur in messages, where a slash separates nested fields.
    names = {repr(field.name.replace("/", ".")): field.name for field in fields if not field.many}

    def read(text: Text) -> pa.Table:
        while True:
            schema = nested([Field(f.name, "category", pa.string()) if f.name in as_text else f for f in fields])
            try:
                return read_objects(with_quotes(text, of_text) if of_text else text, schema)
            except RefusedLine as error:
                found = CHANGED.fullmatch(str(error))
                name = names.get(found[1]) if found else None
                if found is None or name is None or name in as_text | of_text:
                    raise
                (of_text if found[2] else as_text).add(name)

    def parse(text: Text) -> pa.Table:
        if not text:
            return format.schema.empty_table()
        check_bytes(text, format)
        _check_lines(text)
        try:
            found = read(text)
        except RefusedLine as error:
            # pyarrow.json does not name the column of a value that does not fit its type.
            if value := re.fullmatch(r"Failed to convert JSON to (\S+), couldn't parse:(.*)", str(error), re.DOTALL):
                for field in fields if count_lines(text, False) == 1 else ():
                    try:
                        read_objects(text, nested([field]))
                    except RefusedLine as error:
                        said = f"column {field.name!r}: {value[2][:80]!r} is no {field.type}"
                        raise RefusedLine(said + AS_TEXT * (not field.many)) from error
            raise
        if found.num_rows != count_lines(text, False):
            raise RefusedLine("more than one object in the line")
        return finished(pa.table([_column(found, field) for field in fields], [f.name for f in fields]), format)

    return parse


def with_quotes(text: Text, names: Collection[str]) -> Text:
    """Text in which the numbers of these fields, in objects of any depth, are quoted, so that no digit is lost."""
    keys = b"|".join(re.escape(part.encode()) for name in sorted(names) for part in (name, name.rpartition(".")[2]))
    return re.sub(rb'(?<!\\)("(?:%b)"\s*:\s*)(-?[0-9][-+.0-9eE]*)' % keys, rb'\1"\2"', text)


def read_objects(text: Text, schema: pa.Schema | None = None) -> pa.Table:
    """Table of the objects. `schema`: fields to read; None: all, with inferred types. Raises RefusedLine if the text
    cannot be parsed."""
    try:
        return pj.read_json(
            pa.BufferReader(pa.py_buffer(text)),
            # Types are inferred per block, so inference needs a single block.
            read_options=pj.ReadOptions(use_threads=False, block_size=LONGEST_LINE if schema else len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"
            ),
        )
    except pa.ArrowInvalid as error:
        raise RefusedLine(_in_words(str(error))) from error


def nested(fields: Sequence[Field]) -> pa.Schema:
    """Schema of objects with these fields, which may be nested."""
    tree: dict[str, Any] = {field.name: _read_type(field) for field in fields}
    for field in fields:
        *path, last = field.name.split(".")
        node: Any = tree
        for step in path:
            node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.setdefault(last, _read_type(field))
    return pa.schema([(name, _struct(kind)) for name, kind in tree.items()])


def _struct(kind: Any) -> pa.DataType:
    return pa.struct([(name, _struct(inner)) for name, inner in kind.items()]) if isinstance(kind, dict) else kind


def _read_type(field: Field) -> pa.DataType:
    """Type as which pyarrow.json reads a field: one that JSON can represent."""
    if field.many:
        return pa.list_(field.type) if field.form == "json" else pa.string()
    if field.role == "label":
        numeric = all(re.fullmatch(r"[-+]?[0-9.]+", value) for value in field.values or ("0", "1"))
        known = {value.lower() for value in field.values or ()} == {"false", "true"}
        return pa.float64() if numeric else pa.bool_() if known else pa.string()
    return pa.float64() if field.form == "whole" else field.type


def _column(found: pa.Table, field: Field) -> pa.ChunkedArray:
    column = found.column(field.name)
    path = field.name.split(".")
    if len(path) > 1 and path[0] in found.column_names and pa.types.is_struct(found.schema.field(path[0]).type):
        inner = pc.struct_field(found.column(path[0]), path[1:])
        column = pc.coalesce(column, inner)
    if pa.types.is_string(column.type) and (field.nulls or _read_type(field) != pa.string()):
        column = pc.if_else(pc.is_in(column, pa.array(["", *field.nulls])), None, column)
    if pa.types.is_string(column.type) and _read_type(field) != pa.string():
        return _in_quotes(column, field)
    if field.role == "label" and pa.types.is_floating(column.type):
        negative, positive = (float(value) for value in field.values or ("0", "1"))
        places = pc.index_in(column, pa.array([negative, positive], pa.float64()))
        return places.cast(pa.int8()) if not field.values else pc.choose(places, *field.values)
    if field.form == "whole":
        # Doubles represent all integers below 2**53, and no other is read as one of them.
        exact = pc.less(pc.abs(column), 2**53)
        other = pc.invert(pc.fill_null(pc.and_(exact, pc.equal(column, pc.trunc(column))), True))
        if pc.any(other).as_py():
            inexact = f"{column.filter(other)[0]} is no whole number that a float has exactly"
            raise RefusedLine(f"column {field.name!r}: {inexact}{AS_TEXT}")
        return column.cast(field.type)
    return column


def _in_quotes(texts: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    """Values of a field with quoted numbers."""
    if field.role == "label":
        return texts if field.values else label_of(texts, ("0", "1"))
    if pa.types.is_integer(field.type):
        return whole_numbers(texts, field.type, field.name)
    try:
        return texts.cast(field.type)
    except pa.ArrowInvalid as error:
        raise RefusedLine(f"column {field.name!r}: {texts[0].as_py()!r:.80} is no {field.type}") from error


def _check_lines(text: Text) -> None:
    """Raises RefusedLine if a line does not start and end as an object does, or the text is not UTF-8. pyarrow.json
    drops blank lines, accepts objects that span lines, and does not validate skipped bytes."""
    values, starts = np.frombuffer(text, np.uint8), line_starts(text, False)
    begins = values[starts[:-1]] == ord("{")
    ends = values[starts[1:] - 1 - (values[starts[1:] - 1] == ord("\n"))] == ord("}")
    for at in np.flatnonzero(~(begins & ends)):
        line = bytes(text[starts[at] : starts[at + 1]]).strip(BLANK)
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise RefusedLine(
                "a blank line" if not line else "not an object of JSON from its begin to its end, as `jq -c` writes it"
            )
    try:
        pa.array([text], pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise RefusedLine("is not UTF-8") from error


def _in_words(error: str) -> str:
    if "straddling" in error:
        return f"the line is longer than {format_size_down(LONGEST_LINE)}"
    said = re.sub(r"^JSON parse error: |\.? in row \d+$", "", error)
    return re.sub(r"Column\(/([^)]*)\)", lambda found: f"column {found[1].replace('/', '.')!r}", said)
