"""The table of types: the kind of values in a column of each Arrow type, its possible uses, and its plain type.

Several types can contain the same values: text in one buffer or as views, lists of a fixed size, decimals without a
fraction, dictionaries. Keys and numbers are computed from the plain type of each, so that all of them train to
identical bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, reduce
from types import MappingProxyType as Fixed
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.uuids import NUM_BYTES, in_lower_case, texts_of

NOTHING = "nothing"
"""Kind of a column whose values are all null, as pandas writes it."""
HOLDS: Mapping[str, tuple[str, ...]] = Fixed(
    {
        "label": ("integers", "numbers"),
        "weight": ("integers", "numbers"),
        "number": ("integers", "numbers"),
        "category": ("integers", "numbers", "text"),
        "list": ("lists of integers", "lists of numbers", "lists of text"),
        "list of numbers": ("lists of integers", "lists of numbers"),
        "time": ("integers", "numbers", "text", "times"),
        "group": ("integers", "numbers", "text"),
    }
)
"""Kinds of values (see `kind_of`) allowed in each role, besides NOTHING, which is always allowed. In a category, a list
or a group, a boolean counts as 1 or 0, and other numbers must be whole."""
IS_LIST = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
IS_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
WIDE = 18
"""Maximum number of digits of a decimal that always fits in a 64-bit integer."""
UNSIGNED_DIGITS = 20
"""Digits of the decimals as which Spark writes unsigned 64-bit integers."""


def is_list(found: pa.DataType) -> bool:
    """True for list types of any kind."""
    return any(is_type(found) for is_type in IS_LIST)


@cache
def plain_type(found: pa.DataType, canonical: bool = True) -> pa.DataType:
    """Type to which a type's values are converted; a type that is read unchanged, or cannot be read, maps to itself.
    `canonical`: see `to_plain`."""
    types = pa.types
    if isinstance(found, pa.BaseExtensionType):
        return plain_type(found.storage_type, canonical)
    if types.is_run_end_encoded(found):
        return plain_type(found.value_type, canonical)
    if types.is_dictionary(found):
        inner = plain_type(found.value_type, canonical)
        if inner == found.value_type and kind_of(inner) in ("integers", "text"):
            return found
        is_keyed = kind_of(inner) in ("integers", "text")
        return pa.dictionary(found.index_type, inner, found.ordered) if is_keyed else inner
    if is_list(found):
        inner = plain_type(found.value_type, canonical)
        is_plain = inner == found.value_type and (types.is_list(found) or types.is_large_list(found))
        return found if is_plain else pa.large_list(inner)
    if types.is_decimal(found):
        if found.scale > 0:
            return pa.float64()
        return pa.uint64() if found.precision == UNSIGNED_DIGITS else pa.int64()
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    if types.is_fixed_size_binary(found):
        return pa.large_string() if canonical and found.byte_width == NUM_BYTES else pa.binary()
    return views.get(found, found)


@cache
def kind_of(found: pa.DataType) -> str | None:
    """Kind of the values of an Arrow type, as named in messages: "integers", "numbers" (also booleans), "text" (also
    binary), "times", NOTHING, or "lists of" one of these; None if no column of the type can be read."""
    types, plain = pa.types, plain_type(found)
    if is_list(plain):
        inner = kind_of(plain.value_type)
        return None if inner is None or inner == "times" or inner.startswith("lists") else f"lists of {inner}"
    if types.is_dictionary(plain):
        return kind_of(plain.value_type)
    if types.is_integer(plain):
        return "integers"
    if types.is_floating(plain) or types.is_boolean(plain):
        return "numbers"
    if types.is_timestamp(plain) or types.is_date(plain):
        return "times"
    if types.is_null(plain):
        return NOTHING
    return "text" if any(is_type(plain) for is_type in IS_TEXT) else None


def has_no_values(found: pa.DataType) -> bool:
    """True for the types that pandas and others give a column whose values, lists or elements are all null."""
    return kind_of(found) in (NOTHING, f"lists of {NOTHING}")


def key_kind(found: pa.DataType) -> str | None:
    """Kind of the keys of a category or a group: booleans and whole numbers are integers."""
    kind = kind_of(found)
    return kind.replace("numbers", "integers") if kind else None


def fits(found: pa.DataType, *roles: str) -> bool:
    """True if a column of this type may have one of these roles (see `HOLDS`)."""
    kind = kind_of(found)
    is_empty = has_no_values(found) and (kind == NOTHING or any(role.startswith("list") for role in roles))
    return is_empty or any(kind in HOLDS[role] for role in roles)


def instead(found: pa.DataType) -> str:
    """Advice on what to write instead of a type that does not fit, as the end of a sentence."""
    types, plain = pa.types, plain_type(found)
    if types.is_struct(plain):
        names = ", ".join(f".{plain.field(n).name}" for n in range(min(3, plain.num_fields)))
        return f"name one of its fields, with a dot: {names}"
    if types.is_map(plain):
        return "write its keys, or its values, as a list"
    if is_list(plain) and not kind_of(plain):
        return "write one list a row, of integers or of text"
    if kind_of(plain) == "times":
        return "write what matters of the time, such as its hour or weekday, as an integer"
    if types.is_temporal(plain):
        return "write the time as an integer, such as a number of seconds"
    return ""


def to_plain(column: pa.ChunkedArray, into: pa.DataType, what: str, canonical: bool = True) -> pa.ChunkedArray:
    """The column in its plain type (see `plain_type`), with UUIDs in their one form, lower-case text, unless not
    `canonical` (see `DataFile`). Raises ValueError if a decimal does not fit in a 64-bit integer; `what` is used in the
    message."""
    has_text = canonical and str(kind_of(into)).endswith("text")
    if column.type == into and not has_text:
        return column
    try:
        chunks = [_plain(chunk, into) for chunk in column.chunks]
        return pa.chunked_array([in_lower_case(chunk) for chunk in chunks] if has_text else chunks, into)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{what}, of type {column.type}, has values that {into} does not hold ({error}); write it as text, or as "
            "floating-point numbers if it is an amount"
        ) from error


def _plain(array: pa.Array, into: pa.DataType) -> pa.Array:
    types, found = pa.types, array.type
    if found == into:
        return array
    if isinstance(found, pa.BaseExtensionType):
        return _plain(array.storage, into)
    if types.is_run_end_encoded(found):
        ends_R = array.run_ends.to_numpy()
        places_N = np.searchsorted(ends_R, np.arange(array.offset, array.offset + len(array)), side="right")
        return _plain(array.values, into).take(pa.array(places_N))
    if types.is_dictionary(found) and types.is_dictionary(into):
        values = _plain(array.dictionary, into.value_type)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=into.ordered)
    if types.is_dictionary(found):
        return _plain(array.dictionary, into).take(array.indices)
    if is_list(found):
        return _of_lists(array, _plain(array.flatten(), into.value_type))
    if types.is_fixed_size_binary(found) and types.is_large_string(into):
        return texts_of(array)
    if types.is_decimal(found):
        # Arrow's conversion of decimals to floats does not round to nearest, and that of short decimals to integers
        # fails.
        wide = array.cast(pa.decimal256(76, max(0, found.scale)))
        return wide.cast(pa.string()).cast(into) if types.is_floating(into) else wide.cast(into)
    return array.cast(into)


def _of_lists(lists: pa.Array, values: pa.Array) -> pa.Array:
    """The same lists with their values replaced by `values`, in order."""
    # Arrow's conversion of list views yields wrong ends.
    ends_N = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy())])
    mask = lists.is_null() if lists.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(ends_N, pa.int64()), values, mask=mask)


def in_memory_type(column: pa.ChunkedArray, canonical: bool = True) -> pa.DataType:
    """Plain type of a column in memory: unsigned integers if decimals reach 2^63."""
    into = plain_type(column.type, canonical)
    if pa.types.is_decimal(column.type) and column.type.precision > WIDE and pa.types.is_integer(into):
        greatest = pc.max(column).as_py()
        return pa.int64() if greatest is None or greatest < 1 << 63 else pa.uint64()
    return into


def whole(column: pa.ChunkedArray, what: str, first_row: int = 0) -> pa.ChunkedArray:
    """Convert floats, or lists of floats, that stand for integers (as pandas writes integers with None) to integers.
    Raises ValueError, with the row, if one is not an integer; `what` and `first_row` are used in the message."""
    if pa.types.is_boolean(column.type):
        return column.cast(pa.uint8())
    if is_list(column.type):
        inside = [whole(pa.chunked_array([chunk.flatten()]), f"{what}, a value in a list,") for chunk in column.chunks]
        lists = [_of_lists(chunk, one.combine_chunks()) for chunk, one in zip(column.chunks, inside, strict=True)]
        return pa.chunked_array(lists, None if lists else pa.large_list(pa.int64()))
    values_N = column.to_numpy()
    is_null_N = np.isnan(values_N)
    exact = 2.0 ** (np.finfo(values_N.dtype).nmant + 1)
    bad_N = np.flatnonzero(~is_null_N & ((values_N != np.trunc(values_N)) | (np.abs(values_N) > exact)))
    if len(bad_N):
        value, row = values_N[bad_N[0]].item(), first_row + bad_N[0]
        said, way = f"is not an integer up to {exact:,.0f}, which this type holds exactly", "convert the column"
        if value == np.trunc(value):
            said, way = f"{said}: ids above that are damaged already", "write the column from its source"
        raise ValueError(
            f"{what} has type {column.type}, expected integers, and {value} at row {row} {said}; {way} to integers or "
            "to text"
        )
    return pa.chunked_array([pa.array(np.where(is_null_N, 0, values_N).astype(np.int64), mask=is_null_N)])


def unified(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """The type that can represent the values of all these types, whatever their order; None if there is none. If some
    of the types can, the first of them. Whole numbers of any sign become unsigned if one of the types is uint64: see
    `with_sign`."""
    return reduce(_wider, types, pa.null())


def _wider(one: pa.DataType | None, other: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if one is None or one == other or types.is_null(plain_type(other)):
        return one
    if types.is_null(plain_type(one)):
        return other
    one, other = (value_of(plain_type(kind)) for kind in (one, other))
    if one == other:
        return one
    if is_list(one) and is_list(other):
        inner = _wider(one.value_type, other.value_type)
        return None if inner is None else pa.large_list(inner)
    kinds = {kind_of(one), kind_of(other)}
    if kinds == {"times"}:
        if types.is_date(one) and types.is_date(other):
            return pa.date32()
        if types.is_date(one) or types.is_date(other) or (one.tz is None) != (other.tz is None):
            return None
        other = pa.timestamp(other.unit, one.tz)
    if kinds == {"integers"} and pa.uint64() in (one, other):
        return pa.uint64()
    if kinds in ({"text"}, {"integers"}, {"times"}):
        pair = (pa.schema([("", kind)]) for kind in (one, other))
        return pa.unify_schemas(list(pair), promote_options="permissive").field(0).type
    if not kinds <= {"integers", "numbers"}:
        return None
    # Arrow promotes float32 and int16 to float32, and does not unify booleans with numbers.
    floats = [kind for kind in (one, other) if types.is_floating(kind)]
    if any(types.is_boolean(kind) for kind in (one, other)):
        return floats[0] if floats else next(kind for kind in (one, other) if types.is_integer(kind))
    return max(floats, key=lambda kind: kind.bit_width) if len(floats) == 2 else pa.float64()


def is_unsigned(found: pa.DataType) -> bool:
    """True for unsigned integers of 64 bits, and lists of them."""
    return pa.types.is_uint64(found.value_type if is_list(found) else found)


def with_sign(found: pa.DataType, ends: Iterable[int | None]) -> pa.DataType | None:
    """A type of unsigned integers of 64 bits, or lists of them; signed if some values are negative, and None if others
    then reach 2^63. `ends`: minima and maxima of the values, None where there are none."""
    known = [end for end in ends if end is not None]
    if min(known, default=0) >= 0:
        return found
    signed = pa.large_list(pa.int64()) if is_list(found) else pa.int64()
    return signed if max(known) < 1 << 63 else None


def ends_of(column: pa.ChunkedArray | pa.Array) -> list[int | None]:
    """Minimum and maximum of a column of integers, or of the values in its lists."""
    flat = pc.list_flatten(column) if is_list(column.type) else column
    return [end.as_py() for end in pc.min_max(flat.cast(value_of(flat.type))).values()]


def type_of_all(columns: Sequence[pa.ChunkedArray | pa.Array]) -> pa.DataType | None:
    """The type that can represent the values of all columns; None if there is none."""
    into = unified(column.type for column in columns)
    if into is None or not is_unsigned(into) or len({column.type for column in columns}) == 1:
        return into
    return with_sign(into, [end for column in columns for end in ends_of(column)])


def converted(column: pa.ChunkedArray, into: pa.DataType, what: str) -> pa.ChunkedArray:
    """The column in a type that can represent its values (see `unified`). `what`: see `to_plain`."""
    return column if column.type == into else to_plain(column, plain_type(column.type), what).cast(into)


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of all tables, which have the same columns, in types that can represent the values of each. Raises
    ValueError, with the column, if there is no such type."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name in tables[0].column_names:
        parts = [table.column(name) for table in tables]
        into = type_of_all(parts)
        if into is None:
            kinds = ", ".join(sorted({str(part.type) for part in parts}))
            raise ValueError(f"column {name!r} has types {kinds}, and no type has the values of all; write it as text")
        parts = [converted(part, into, f"column {name!r}") for part in parts]
        columns[name] = pa.chunked_array([chunk for part in parts for chunk in part.chunks], into)
    return pa.table(columns)


def as_python(value: pa.Scalar) -> Any:
    """Python value of a scalar; of a time the nearest that Python has: microseconds, in the years 1 to 9999."""
    kind = value.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # Without pandas, nanoseconds have no Python value.
        value = value.cast(pa.timestamp("us", kind.tz), safe=False)
    try:
        return value.as_py()
    except OverflowError:
        nearest = datetime.max if value.value > 0 else datetime.min
        return nearest.date() if pa.types.is_date(kind) else nearest.replace(tzinfo=UTC if kind.tz else None)


def value_of(found: pa.DataType) -> pa.DataType:
    """Value type of a dictionary type; any other type is returned unchanged."""
    return found.value_type if pa.types.is_dictionary(found) else found
