"""Conversion of libsvm and libffm lines to Arrow tables, with a list of ids or a column per field."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.kernels import sparse_text
from pipeline.prepare.formats import Field, Format
from pipeline.prepare.lines import Parser, RefusedLine, Text, count_lines
from pipeline.records import I32, I64, Array

REASONS = {
    sparse_text.BAD_LABEL: "a line must begin with a label of 0, 1, -1 or +1",
    sparse_text.BAD_TOKEN: "expected {token} after the label, with numbers from 0 to 999,999,999,999,999,999",
    sparse_text.NO_SLOT: "a field that was not named; name it in --fields to make it a column",
    sparse_text.NOT_ONE: "a value other than 1, which an id cannot keep; name its {number} in --numbers to make a "
    "column of its values, or give --ignore-values",
}
FORMAT_WORDS = {
    "libsvm": {"token": "index:value", "number": "index"},
    "libffm": {"token": "field:index:value", "number": "field"},
}


TEXT_BLOCK_BYTES = 1 << 20
"""Bytes of text per call of the parser: the tokens take six times the size of their text during parsing."""


def sparse_parser(format: Format) -> Parser:
    """Parser of lines of the format. Each column after the label is a slot."""
    columns = format.fields[1:]
    slots, is_number = _slots_of(format), np.array([f.role == "number" for f in columns])

    def parse(text: Text) -> pa.Table:
        return pa.concat_tables([parse_block(block) for block in _blocks(text)] or [format.schema.empty_table()])

    def parse_block(text: Text) -> pa.Table:
        num_lines, num_colons = count_lines(text, False), text.count(b":")
        labels_N = np.empty(num_lines, np.int8)
        rows_T, slots_T = np.empty(num_colons, np.int32), np.empty(num_colons, np.int16)
        ids_T = np.empty(num_colons, np.int64)
        values = np.empty(len(text) if is_number.any() else 0, np.uint8)
        ends_T = np.zeros(num_colons + 1, np.int32)
        view = np.frombuffer(text, np.uint8)
        view.flags.writeable = False
        code, num_tokens = sparse_text.parse_sparse(
            view, format.kind == "libffm", slots, is_number, format.ignore_values, labels_N, rows_T, slots_T, ids_T,
            values, ends_T,
        )  # fmt: skip
        if code != sparse_text.GOOD:
            raise RefusedLine(REASONS[code].format(**FORMAT_WORDS[format.kind]))
        texts = pa.StringArray.from_buffers(num_tokens, pa.py_buffer(ends_T), pa.py_buffer(values))
        arrays = {format.fields[0].name: pa.array(labels_N)}
        for field, at_T in zip(columns, _by_slot(slots_T[:num_tokens], len(columns)), strict=True):
            arrays[field.name] = _column(field, num_lines, rows_T[at_T], ids_T[at_T], texts, at_T)
        return pa.table([arrays[name] for name in format.schema.names], schema=format.schema)

    return parse


def _blocks(text: Text) -> Iterator[Text]:
    """Cut the text into blocks of whole lines, of about `TEXT_BLOCK_BYTES` each."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + TEXT_BLOCK_BYTES) + 1 or len(text)
        yield text[begin:end]
        begin = end


def _slots_of(format: Format) -> I32:
    """Slot of each index (libsvm) or field (libffm) by its number, the end of its column's name. Numbers without a
    column have the slot of the list of ids (libsvm) or -1 (libffm); so does the last entry, for all larger numbers."""
    others = 0 if format.kind == "libsvm" else -1
    numbered = {int(f.name[1:]): slot for slot, f in enumerate(format.fields[1:]) if f.name != "ids"}
    slots = np.full(max(numbered, default=-1) + 2, others, np.int32)
    for number, slot in numbered.items():
        slots[number] = slot
    return slots


def _by_slot(slots_T: Array, num_slots: int) -> Iterator[I64 | slice]:
    """Yield the indices of the tokens of each slot, in order."""
    if num_slots == 1:
        yield slice(0, len(slots_T))
        return
    order_T = np.argsort(slots_T, kind="stable")
    ends = np.cumsum(np.bincount(slots_T, minlength=num_slots))
    for slot in range(num_slots):
        yield order_T[ends[slot - 1] if slot else 0 : ends[slot]]


def _column(field: Field, num_lines: int, rows: I32, ids: I64, texts: pa.Array, at_T: I64 | slice) -> pa.Array:
    """Column of a field; null in rows without a token of the field. Raises RefusedLine if a row has several values of a
    field that is not a list."""
    counts_N = np.bincount(rows, minlength=num_lines)
    absent_N = counts_N == 0
    if field.many:
        offsets = np.concatenate([[0], np.cumsum(counts_N)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids), mask=pa.array(absent_N))
    if counts_N.max(initial=0) > 1:
        raise RefusedLine(
            f"column {field.name!r} has several values; name fields that may have several in a line in --many"
        )
    if field.role == "number":
        found = _floats(texts, at_T, field)
        take = np.where(absent_N, 0, np.cumsum(counts_N) - 1)
        return found.take(pa.array(take, mask=absent_N)) if len(found) else pa.nulls(num_lines, field.type)
    ids_N = np.zeros(num_lines, np.int64)
    ids_N[rows] = ids
    return pa.array(ids_N, mask=absent_N)


def _floats(texts: pa.Array, at_T: I64 | slice, field: Field) -> pa.Array:
    """Values of a number column. Raises RefusedLine if one is not a number, or not finite in the column's type."""
    try:
        taken = texts[at_T] if isinstance(at_T, slice) else texts.take(pa.array(at_T))
        found = taken.cast(field.type)
    except pa.ArrowInvalid as error:
        raise RefusedLine(f"column {field.name!r}: a value is not a number") from error
    if pc.any(pc.is_inf(found)).as_py():
        raise RefusedLine(f"column {field.name!r}: a number must be finite and fit {field.type}")
    return found
