"""Validity rules for values of all formats, columns derived from others, and distinct values of a column with their
counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from pipeline.data.files import InputColumn
from pipeline.features.side_files import COUNT, VALUE
from pipeline.files.types import is_list, value_of
from pipeline.prepare.formats import CALENDAR, Field
from pipeline.prepare.lines import RefusedLine
from pipeline.prepare.schema import DAYS, micros_of
from pipeline.records import U64

Bools = NDArray[np.bool_]
JSON = "json"
"""Separator that denotes lists in JSON or Python notation."""


def bad_values(table: pa.Table, fields: Sequence[Field]) -> tuple[Bools, str] | None:
    """[N] True for rows with a label other than 0 and 1, an infinite number or no valid time, and the reason for the
    first; None if all rows are good."""
    bad, first, reason = np.zeros(table.num_rows, bool), table.num_rows, ""
    for field in fields:
        column = table.column(field.name) if field.role in ("label", "number", "time") else None
        found = None if column is None else _bad_in(column, field)
        if column is None or found is None:
            continue
        bad |= found
        at = int(np.flatnonzero(found)[0])
        if at < first:
            first, reason = at, f"column {field.name!r}: {_rule_of(column[at].as_py(), field)}"
    return (bad, reason) if reason else None


def _bad_in(column: pa.ChunkedArray, field: Field) -> Bools | None:
    if field.role == "label":
        bad = pc.invert(pc.fill_null(pc.or_(pc.equal(column, 0), pc.equal(column, 1)), False))
    elif field.role == "time":
        bad = pc.is_null(micros_of(column, field.form) if field.form in DAYS else column)
    elif pa.types.is_floating(column.type):
        bad = pc.fill_null(pc.is_inf(column), False)
    else:
        return None
    return np.asarray(bad) if pc.any(bad).as_py() else None


def whole_numbers(texts: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """Parse texts as integers, ignoring blanks around them. Raises RefusedLine if a text is not in canonical form, such
    as 007: it may be an identifier different from 7."""
    texts = pc.ascii_trim_whitespace(texts)
    try:
        numbers = texts.cast(kind)
        other = pc.not_equal(numbers.cast(pa.string()), texts)
    except pa.ArrowInvalid:
        numbers, other = texts, pc.invert(pc.match_substring_regex(texts, "^(0|-?[1-9][0-9]{0,18})$"))
        other = pc.if_else(pc.any(other), other, pc.is_valid(texts))
    if pc.any(other).as_py():
        raise RefusedLine(
            f"column {name!r}: {texts.filter(other)[0].as_py()[:80]!r} is no whole number as {kind} is printed "
            f"({name}:category in the schema takes any text; its `nulls` and `nulls_of` are the texts that are null)"
        )
    return numbers


def lists_of(texts: pa.ChunkedArray, separator: str, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """[N] list of each text's values; null for null texts. `kind`: type of a value; `separator`: JSON, or the text
    between two values. Raises RefusedLine if a text is not such a list."""
    if separator == JSON:
        return _of_json(texts, kind, name)
    lists = pc.split_pattern(texts, separator)
    if pa.types.is_integer(kind):
        whole_numbers(pc.list_flatten(lists), kind, name)
    return lists.cast(pa.list_(kind))


def _of_json(texts: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    # Python's repr uses single quotes, which are invalid in JSON.
    single = pc.and_(pc.match_substring(texts, "'"), pc.invert(pc.match_substring(texts, '"')))
    texts = pc.if_else(single, pc.replace_substring(texts, "'", '"'), texts)
    if not len(texts):
        return pa.chunked_array([], pa.list_(kind))
    rows = pc.binary_join_element_wise('{"v":', pc.fill_null(texts, "null"), "}\n", "").combine_chunks()
    shown = (texts.drop_null().to_pylist() or [""])[0][:80] if len(texts) == 1 else ""
    try:
        found = pj.read_json(
            pa.BufferReader(rows.buffers()[2]),
            read_options=pj.ReadOptions(use_threads=False, block_size=rows.nbytes),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema({"v": pa.list_(kind)}), unexpected_field_behavior="error"
            ),
        )
    except pa.ArrowInvalid as error:
        raise RefusedLine(f"column {name!r}: {shown!r} is no list of {kind} as JSON writes it") from error
    if len(found) != len(texts):
        raise RefusedLine(f"column {name!r}: {shown!r} is more than one list as JSON writes it")
    return found["v"]


def label_of(column: pa.ChunkedArray, values: tuple[str, str]) -> pa.ChunkedArray:
    """Map a label's two values to 0 and 1, ignoring case and blanks around them; null for any other value."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    texts = pc.utf8_trim_whitespace(pc.utf8_lower(column.cast(kind).cast(pa.string())))
    places = pc.index_in(texts, pa.array([value.lower() for value in values]))
    return places.cast(pa.int8())


def _rule_of(value: object, field: Field) -> str:
    if field.role == "label":
        allowed = " or ".join(field.values or ("0", "1"))
        return f"a label must be {allowed}, got {'nothing or something else' if value is None else value}"
    if field.role == "number":
        return f"a number must be finite and fit {field.type}, got {value}"
    if value is None:
        return "a time must be given, got nothing"
    return f"{str(value)[:80]!r} is no time written {field.form}; {field.name}:time:string takes any text as it is"


def calendar_columns(hours: pa.ChunkedArray) -> tuple[list[pa.Array], Bools]:
    """CALENDAR columns of integers YYMMDDHH without nulls; and [N] True for integers that are not a valid hour."""
    hour_N = np.asarray(hours)
    year_N, month_N, day_N, clock_N = (hour_N // 10**n % 100 for n in (6, 4, 2, 0))
    bad_N = (hour_N < 0) | (hour_N >= 10**8) | (month_N < 1) | (month_N > 12) | (day_N < 1) | (clock_N > 23)
    months_N = (30 + year_N) * 12 + np.where(bad_N, 1, month_N) - 1
    date_N = months_N.astype("datetime64[M]").astype("datetime64[D]") + (day_N - 1)
    bad_N |= date_N.astype("datetime64[M]").astype(np.int64) != months_N
    # 1 January 1970 was a Thursday.
    weekday_N = (date_N.astype(np.int64) + 3) % 7
    made = dict(zip(CALENDAR, (clock_N, weekday_N, weekday_N >= 5), strict=True))
    return [pa.array(made[name].astype(np.int8)) for name in CALENDAR], bad_N


def keys_of(values: pa.Array, name: str) -> U64:
    """[N] keys of integers or strings in a workflow's category `name`; nulls get the key of a missing value."""
    # Imported here: its kernels need Numba, and importing Numba takes longer than a small preparation.
    from pipeline.data import decode

    return decode.keys_of(values, InputColumn(name, "data.categories", table=name))


def counted(column: pa.ChunkedArray) -> pa.Table:
    """Values of a column of integers, strings, dictionaries, or lists of these, with the number of occurrences of each,
    which may be divided among several rows. Nulls are not counted."""
    flat = pc.list_flatten(column) if is_list(column.type) else column
    tables = [pa.table({VALUE: pa.array([], value_type(column.type)), COUNT: pa.array([], pa.int64())})]
    for chunk in flat.chunks:
        values, counts = chunk.value_counts().flatten()
        plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        tables.append(pa.table({VALUE: plain, COUNT: counts}).filter(plain.is_valid()))
    return pa.concat_tables(tables)


def summed(counts: pa.Table) -> pa.Table:
    """Sum the counts of equal values. Each value is in one row of the result."""
    sums = counts.group_by(VALUE).aggregate([(COUNT, "sum")])
    return pa.table({VALUE: sums.column(VALUE), COUNT: sums.column(f"{COUNT}_sum")})


def by_key(counts: pa.Table, name: str) -> pa.Table:
    """The rows, whose values differ, in the order of (key, value) in the category `name`."""
    keys = keys_of(counts.column(VALUE).combine_chunks(), name)
    order = [("key", "ascending"), (VALUE, "ascending")]
    return counts.append_column("key", pa.array(keys)).sort_by(order).drop_columns(["key"]).combine_chunks()


def value_type(found: pa.DataType) -> pa.DataType:
    """Value type of a column type, inside lists and dictionaries."""
    return value_of(found.value_type if is_list(found) else found)
