"""Conversion of lines of libsvm (`label index:value ...`) and libffm (`label field:index:value ...`) to Arrow tables,
with a list of ids or a column per field."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.prepare.formats import QUERY, Field, Format
from pipeline.prepare.lines import Parser, RefusedLine, Text
from pipeline.records import I32, I64

LABELS = pa.array(["1", "+1", "0", "-1", "+0", "-0"])
"""The first two become 1, the others 0."""
NUMBER = "[0-9]{1,18}"
"""Index or field: any such number fits into an int64."""
TOKEN = f"(?P<index>{NUMBER}):(?P<value>.+)$"
PATTERNS = {"index": f"^{TOKEN}", "field": f"^(?P<field>{NUMBER}):{TOKEN}"}
COMMENT = re.compile(rb"[ \t]#[^\n]*")
"""Pattern of what libsvm ignores at the end of a line."""
TEXT_BLOCK_BYTES = 1 << 20
"""Bytes of text that are parsed at once: their tokens take several times as much memory."""


def sparse_parser(format: Format) -> Parser:
    """Parser of lines of the format. Each column after the label is a slot, except QUERY."""
    columns, slots = [field for field in format.fields[1:] if field != QUERY], _slots_of(format)
    is_number = np.array([f.role == "number" for f in columns])
    slot_by, token = ("index", "index:value") if format.kind == "libsvm" else ("field", "field:index:value")
    bad_token = f"expected {token} after the label, with numbers from 0 to 999,999,999,999,999,999"
    bad_token += ", or qid:number if the first line of a file has it" * (slot_by == "index")

    def parse(text: Text) -> pa.Table:
        return pa.concat_tables([parse_block(block) for block in _blocks(text)] or [format.schema.empty_table()])

    def parse_block(text: Text) -> pa.Table:
        labels, rows_T, tokens = _tokens(COMMENT.sub(b"", text) if slot_by == "index" else text)
        arrays = {format.fields[0].name: labels}
        if QUERY in format.fields:
            found = pc.extract_regex(tokens, f"^{QUERY.name}:(?P<id>{NUMBER})$")
            is_query_T, ids = np.asarray(found.is_valid()), np.asarray(found.drop_null().field("id").cast(pa.int64()))
            arrays[QUERY.name] = _column(QUERY, len(labels), rows_T[is_query_T], ids, tokens)
            rows_T, tokens = rows_T[~is_query_T], tokens.filter(pa.array(~is_query_T))
        parts = pc.extract_regex(tokens, PATTERNS[slot_by])
        if parts.null_count:
            raise RefusedLine(bad_token)
        ids_T, numbers_T = (np.asarray(parts.field(name).cast(pa.int64())) for name in ("index", slot_by))
        slots_T, texts = slots[np.minimum(numbers_T, len(slots) - 1)], parts.field("value")
        if (slots_T < 0).any():
            raise RefusedLine("a field that was not named; name it in --fields to make it a column")
        of_ids = texts.filter(pa.array(~is_number[slots_T]))
        others = of_ids.filter(pc.invert(pc.match_substring_regex(of_ids, r"^1(\.0*)?$")))
        if pc.any(pc.match_substring_regex(others, "[^0-9.+eE-]")).as_py():
            raise RefusedLine(bad_token)
        if len(others) and not format.ignore_values:
            raise RefusedLine(
                f"a value other than 1, which an id cannot keep; name its {slot_by} in --numbers to make a column of "
                "its values, or give --ignore-values"
            )
        ends = np.bincount(slots_T, minlength=len(columns)).cumsum()
        for field, at_T in zip(columns, np.split(np.argsort(slots_T, kind="stable"), ends[:-1]), strict=True):
            column = _column(field, len(labels), rows_T[at_T], ids_T[at_T], texts.take(pa.array(at_T)))
            # In libsvm an absent index has the value 0.
            arrays[field.name] = column.fill_null(0) if slot_by == "index" and field.role == "number" else column
        return pa.table([arrays[name] for name in format.schema.names], schema=format.schema)

    return parse


def _blocks(text: Text) -> Iterator[Text]:
    """Cut the text into blocks of whole lines, of about `TEXT_BLOCK_BYTES` each."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + TEXT_BLOCK_BYTES) + 1 or len(text)
        yield text[begin:end]
        begin = end


def _tokens(text: Text) -> tuple[pa.Array, I64, pa.Array]:
    """Labels of the lines, and row and text of each token after them. Raises RefusedLine if a line does not begin with
    a label."""
    text = text.replace(b"\r\n", b"\n").replace(b"\t", b" ").removesuffix(b"\n")
    # Bytes that are not UTF-8 are refused later, as they match no pattern.
    whole = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(text)], np.int32)), pa.py_buffer(text))
    words = pc.split_pattern(pc.split_pattern(whole, "\n").flatten(), " ")
    starts_N, tokens = np.asarray(words.offsets)[:-1], words.flatten()
    found = pc.index_in(tokens.take(pa.array(starts_N)), LABELS)
    if found.null_count:
        raise RefusedLine("a line must begin with a label of 0, 1, -1 or +1")
    # Two blanks in a row have an empty word between them.
    is_token = np.array(pc.not_equal(tokens, ""))
    is_token[starts_N] = False
    rows_T = np.repeat(np.arange(len(words)), np.asarray(words.value_lengths()))[is_token]
    return pc.less(found, 2).cast(pa.int8()), rows_T, tokens.filter(pa.array(is_token))


def _slots_of(format: Format) -> I32:
    """Slot of each index (libsvm) or field (libffm) by its number, the end of its column's name. Numbers without a
    column have the slot of the list of ids (libsvm) or -1 (libffm); so does the last entry, for all larger numbers."""
    numbered = {int(f.name[1:]): slot for slot, f in enumerate(format.fields[1:]) if f.name[1:].isdigit()}
    slots = np.full(max(numbered, default=-1) + 2, 0 if format.kind == "libsvm" else -1, np.int32)
    for number, slot in numbered.items():
        slots[number] = slot
    return slots


def _column(field: Field, num_lines: int, rows_T: I64, ids_T: I64, texts: pa.Array) -> pa.Array:
    """Column of a field; null in rows without a token of the field. Raises RefusedLine if a row has several values of a
    field that is not a list, or if a number cannot be read or is not finite in the column's type."""
    counts_N = np.bincount(rows_T, minlength=num_lines)
    absent = pa.array(counts_N == 0)
    if field.many:
        offsets = np.concatenate([[0], np.cumsum(counts_N)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids_T), mask=absent)
    if counts_N.max(initial=0) > 1:
        raise RefusedLine(
            f"column {field.name!r} has several values; name fields that may have several in a line in --many"
        )
    try:
        values = texts.cast(field.type) if field.role == "number" else pa.array(ids_T)
    except pa.ArrowInvalid as error:
        raise RefusedLine(f"column {field.name!r}: a value is not a number") from error
    if pc.any(pc.is_inf(values)).as_py():
        raise RefusedLine(f"column {field.name!r}: a number must be finite and fit {field.type}")
    return values.take(pc.if_else(absent, None, pa.array(np.cumsum(counts_N) - 1)))
