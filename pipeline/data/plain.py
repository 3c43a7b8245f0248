"""Conversion of columns of plain types to the types that decoding reads."""

from __future__ import annotations

import pyarrow as pa

from pipeline.data.files import InputColumn
from pipeline.files.types import has_no_values, is_list, kind_of, whole


def plain(column: pa.ChunkedArray, spec: InputColumn, kind: str | None, where: str) -> pa.ChunkedArray:
    """A column of a plain type as decoding reads it: columns without values get a type, keys stored as floats become
    integers, and numbers lose their dictionary. `kind`: kind of the values in the training data, None for numbers.
    Raises ValueError if a float key is not an integer; `where` is used in the message."""
    what = f"{where}: column {spec.name!r} ({spec.setting})"
    found = column.type
    if has_no_values(found):
        return _typed(column, kind or ("integers" if spec.has_keys else "lists of numbers" if spec.sequence else ""))
    if spec.has_keys and str(kind_of(found)).endswith("numbers"):
        return whole(column, what)
    if not spec.has_keys and pa.types.is_dictionary(found):
        return column.cast(found.value_type)
    return column


def _typed(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """A column of nulls, or of lists of nulls, in the type of this kind."""
    inner = {"integers": pa.int64(), "text": pa.string()}.get(kind.removeprefix("lists of "), pa.float32())
    if is_list(column.type):
        return column.cast(pa.large_list(inner))
    return pa.chunked_array([pa.nulls(len(column), pa.list_(inner) if kind.startswith("lists") else inner)])
