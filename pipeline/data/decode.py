"""Conversion of Arrow arrays to this project's arrays (floats, keys, bags of keys), without an intermediate copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.data.bags import Bags
from pipeline.data.files import InputColumn
from pipeline.data.outside import Outside
from pipeline.features.hashes import hash_values, missing_of
from pipeline.files.buffers import numeric_values, validity
from pipeline.files.types import is_list
from pipeline.kernels import assemble
from pipeline.records import F32, U64
from pipeline.workflow import Number

MOST = float(np.finfo(np.float32).max)
NULL_RULES = {
    "data.labels": "a label must be 0 or 1 and not null; correct the data, or name another column in data.labels",
    "data.weight": "a weight must be finite, not negative and not null; correct the data, or unset data.weight",
    "data.numbers": "a number must be finite, and above -1 if the column has log1p, once null and NaN are replaced by "
    "`fill` and `shift` is added; set the column's `fill` or `shift`, or correct the data",
}
NUMBER_RULE = (
    "a label with this loss must be a finite number and not null; correct the data, or leave out examples with a null: "
    "nulls=True in its task of data.tasks"
)


def missing_in(column: InputColumn) -> np.uint64:
    """Key of a missing value of the column."""
    return column.rare.shared if column.rare and column.rare.nulls else missing_of(column.name)


def fill_floats(
    array: pa.Array, column: InputColumn, where: str, first_row: int, out: F32, outside: Outside | None = None
) -> None:
    """Convert a label, weight or number column. Bad values raise ValueError, unless `outside` is given: null labels
    become NaN, and it counts numbers, if its rule is another one. `where` and `first_row` are used in messages."""
    values, bits, at = numeric_values(array)
    _convert(values, column, out)
    if len(bits):
        assemble.mark_missing(bits, at, _float_for_null(column), out)
    num_bad = assemble.count_nan(out)
    is_bad_N = np.isnan(out) if num_bad else np.zeros(0, bool)
    if num_bad and (column.may_be_missing or (outside and column.setting == "data.labels")):
        is_bad_N &= array.is_valid().to_numpy(zero_copy_only=False) & (values == values)
        num_bad = int(is_bad_N.sum())
    if num_bad and outside and column.number:
        at_N = np.flatnonzero(is_bad_N)
        outside.add(where, column.name, first_row + at_N, array[int(at_N[0])].as_py())
        is_null_N = array.take(pa.array(at_N)).is_null().to_numpy(zero_copy_only=False)
        out[at_N] = _nearest(values[at_N], is_null_N, column.number)
    elif num_bad:
        first = int(np.flatnonzero(is_bad_N)[0])
        raise ValueError(
            f"{where}, column {column.name!r} ({column.setting}): {num_bad} bad values in rows {first_row} to "
            f"{first_row + len(out) - 1}, the first is {array[first].as_py()!r} at row {first_row + first}; "
            f"{NUMBER_RULE if column.is_number_label else NULL_RULES[column.setting]}"
        )
    if column.number and column.number.log1p:
        np.log1p(out, out=out)


def _convert(values: NDArray[Any], column: InputColumn, out: F32) -> None:
    """Convert values, ignoring nulls; bad ones become NaN."""
    spec = column.number
    if spec:
        above = -1.0 if spec.log1p else -np.inf
        assemble.numbers_to_float(values, spec.fill, spec.shift, above, out)
    elif column.setting == "data.weight":
        assemble.weights_to_float(values, out)
    elif column.is_number_label:
        assemble.numbers_to_float(values, np.nan, 0.0, -np.inf, out)
    else:
        assemble.labels_to_float(values, out)


def _nearest(values_N: NDArray[Any], is_null_N: NDArray[np.bool_], spec: Number) -> F32:
    """Nearest numbers inside the domain to these, which are outside it (see `Outside`)."""
    x_N = values_N.astype(np.float64)
    x_N = np.where(is_null_N | np.isnan(x_N), spec.fill, x_N) + spec.shift
    y_N: F32 = np.clip(x_N, -MOST, MOST).astype(np.float32)
    return np.where(y_N <= -1, np.float32(0), y_N) if spec.log1p else y_N


def _float_for_null(column: InputColumn) -> np.float32:
    """Value of a null: in a number column the same as for NaN (`fill` plus `shift`), elsewhere NaN, which is an
    error."""
    out = np.full(1, np.nan, np.float32)
    if column.number:
        _convert(out.copy(), column, out)
    return np.float32(out[0])


def fill_keys(array: pa.Array, column: InputColumn, dictionary: U64 | None, out: U64) -> None:
    """Compute the keys of a column of single values, or of the values of a column of lists."""
    missing = missing_in(column)
    if dictionary is not None:
        indices, bits, at = numeric_values(array.indices)
        assemble.take_keys(indices, bits, at, dictionary, missing, out)
        return
    kind = hash_values(array, column.table, out)
    if column.rare:
        column.rare.apply(out, kind, f"column {column.name!r} ({column.setting})")
    bits, at = validity(array)
    if len(bits):
        assemble.mark_missing(bits, at, missing, out)


def fill_bags(array: pa.Array, column: InputColumn, dictionary: U64 | None, bags: Bags) -> None:
    """Append a column of lists: one bag per row."""
    ends, _, _ = numeric_values(array.offsets)
    bits, at = validity(array)
    values = array.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    keys, offsets = bags.room(len(array), len(values) + array.null_count)
    fill_keys(values, column, dictionary, keys[array.null_count :])
    assemble.spread_lists(ends, bits, at, missing_in(column), keys, array.null_count, offsets)
    bags.count += len(array)


def dictionary_keys(array: pa.Array, column: InputColumn) -> U64 | None:
    """Keys of the dictionary of the array, or of its list values; None without a dictionary."""
    values = array.values if is_list(array.type) else array
    if not pa.types.is_dictionary(values.type):
        return None
    return keys_of(values.dictionary, column)


def keys_of(array: pa.Array, column: InputColumn) -> U64:
    """[N] keys of a column of single values."""
    keys_N: U64 = np.empty(len(array), np.uint64)
    fill_keys(array, column, dictionary_keys(array, column), keys_N)
    return keys_N


def mask_labels(
    labels: Sequence[F32], columns: Sequence[InputColumn], where: str, first_row: int, nulls: bool = False
) -> None:
    """Set labels of `data.tasks` to NaN in the examples that lack them. `labels`: values [N] of each column, in the
    order of data.labels. `where` and `first_row` are used in messages. `nulls`: accept nulls in any of them.

    Raises ValueError if a label is null in an example that must have it."""
    values = dict(zip((column.name for column in columns), labels, strict=True))
    for column in columns:
        if not (task := column.task) or not task.where:
            continue
        labels_N, has_N = values[column.name], values[task.where] == 1
        labels_N[~has_N] = np.nan
        if not (task.nulls or nulls) and (is_null_N := has_N & np.isnan(labels_N)).any():
            rows = np.flatnonzero(is_null_N)
            raise ValueError(
                f"{where}, column {column.name!r} (data.labels): {len(rows):,} nulls where {task.where!r} is 1, the "
                f"first at row {first_row + int(rows[0])}; correct the data, or leave such examples out of this label: "
                f"nulls=True in its task of data.tasks"
            )
