"""Columns in types that other programs give the same values, converted to the types that decoding reads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.files import InputColumn, has_no_values

VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Types that hold the same values as others whose bytes lie in one buffer."""


def plain(column: pa.ChunkedArray, spec: InputColumn, kind: str | None, where: str) -> pa.ChunkedArray:
    """The column, with views of texts copied to one buffer, a type for what has no values, and integers for floats that
    stand for them: pandas makes those of integers and None. `kind`: that of the values in the training data, None for
    numbers. Raises ValueError if a float is no integer; `where` is for the message."""
    found = column.type
    if has_no_values(found):
        return _typed(column, kind)
    if pa.types.is_floating(found) and kind == "integers":
        return _whole(column, f"{where}: column {spec.name!r} ({spec.setting})")
    if pa.types.is_dictionary(found) and found.value_type in VIEWS:
        return pc.cast(column, VIEWS[found.value_type])
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        instead = VIEWS.get(found.value_type)
        return pc.cast(column, pa.large_list(instead)) if instead else column
    return pc.cast(column, VIEWS[found]) if found in VIEWS else column


def _typed(column: pa.ChunkedArray, kind: str | None) -> pa.ChunkedArray:
    """A column of nulls, or of lists of nulls, in the type of this kind."""
    inner = {"integers": pa.int64(), "text": pa.string()}.get((kind or "").removeprefix("lists of "), pa.float32())
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if is_list:
        return column.cast(pa.large_list(inner))
    return pa.chunked_array([pa.nulls(len(column), pa.list_(inner) if (kind or "").startswith("lists") else inner)])


def _whole(column: pa.ChunkedArray, what: str) -> pa.ChunkedArray:
    values_N = column.to_numpy()
    is_null_N = np.isnan(values_N)
    exact = 2.0 ** (np.finfo(values_N.dtype).nmant + 1)
    bad_N = np.flatnonzero(~is_null_N & ((values_N != np.trunc(values_N)) | (np.abs(values_N) > exact)))
    if len(bad_N):
        raise ValueError(
            f"{what} has type {column.type}, expected integers as in the training data, and "
            f"{values_N[bad_N[0]].item()} at row {bad_N[0]} is no integer up to {exact:,.0f}, which this type has "
            "exactly; convert the column to integers"
        )
    return pa.chunked_array([pa.array(np.where(is_null_N, 0, values_N).astype(np.int64), mask=is_null_N)])
