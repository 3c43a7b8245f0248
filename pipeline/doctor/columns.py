"""A column of the sample in the form that the doctor compares: codes of its distinct values, and the model's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.bags import Bags
from pipeline.data.decode import dictionary_keys, fill_bags, fill_floats, keys_of, numeric_values
from pipeline.data.files import InputColumn
from pipeline.data.plain import plain
from pipeline.doctor.seen import F64, SeenColumn
from pipeline.kernels.hashing import hash_integers
from pipeline.records import F32, I32, I64, U64

ONE_TABLE = "doctor"
"""Table name for the keys of all columns here, so that equal values in two columns have equal keys."""
NULL = np.uint64(0)
ODD = np.uint64(0x9E3779B97F4A7C15)


def seen_column(
    table: pa.Table, column: InputColumn, kinds: Mapping[str, str], where: Sequence[str], starts: I64
) -> SeenColumn:
    """Describe a column of the sample. `where`, `starts`: name of each file, and its first row in the sample."""
    values = plain(table.column(column.name), column, kinds.get(column.name), "the sample")
    null_N, refused = np.asarray(pc.is_null(values)), ""
    raw_N = input_N = lists = None
    if column.setting == "data.numbers":
        raw_N = _floats(values)
        null_N, keys_N = np.isnan(raw_N), _float_keys(raw_N)
        try:
            input_N = _filled(values, column, where, starts)
        except ValueError as error:
            refused = str(error)
    elif column.is_multi(dict(kinds)):
        keys_N, lists = _list_keys(values, column)
    else:
        null_N = np.asarray(pc.is_null(values, nan_is_null=True))
        raw_N = _floats(values) if pa.types.is_integer(values.type) or not column.setting else None
        keys_N = _keys(values, column) if column.setting or raw_N is None else _float_keys(raw_N)
    keys_N[null_N] = NULL
    keys_U, firsts_U, codes_N = numbered(keys_N)
    rest = raw_N, input_N, refused, lists
    return SeenColumn(column.name, column.setting, codes_N, keys_U, firsts_U, null_N, *rest)


def label_values(table: pa.Table, column: InputColumn, where: Sequence[str], starts: I64) -> F32:
    """[N] labels; 0 for an example without the label. Raises ValueError, with file and row, if one is neither 0 nor
    1."""
    return np.nan_to_num(_filled(plain(table.column(column.name), column, None, "the sample"), column, where, starts))


def numbered(keys_N: U64) -> tuple[U64, I64, I32]:
    """Distinct keys, ascending; the first row of each; and the index of each row's key."""
    keys_U, firsts_U, codes_N = np.unique(keys_N, return_index=True, return_inverse=True)
    return keys_U, firsts_U.astype(np.int64), codes_N.astype(np.int32)


def _list_keys(values: pa.ChunkedArray, column: InputColumn) -> tuple[U64, tuple[I64, I32]]:
    """[N] key of each list, the hash of its elements in order; and the end of each list, and the codes of all
    elements."""
    hashed = InputColumn(column.name, "data.categories", table=ONE_TABLE)
    bags = Bags()
    for chunk in values.chunks:
        fill_bags(chunk, hashed, dictionary_keys(chunk, hashed), bags)
    ends_N = bags.offsets[1 : bags.count + 1].copy()
    elements_V = bags.keys[: bags.num_keys]
    begins_N = np.concatenate(([0], ends_N[:-1])).astype(np.int64)
    places_V = np.arange(len(elements_V)) - np.repeat(begins_N, ends_N - begins_N)
    mixed_V = np.empty(len(elements_V), np.uint64)
    hash_integers((elements_V + places_V.astype(np.uint64) * ODD).view(np.int64), ODD, mixed_V)
    running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed_V, dtype=np.uint64)))
    return running[ends_N] - running[begins_N], (ends_N, numbered(elements_V)[2])


def _keys(values: pa.ChunkedArray, column: InputColumn) -> U64:
    column = InputColumn(column.name, "data.categories", table=ONE_TABLE)
    return np.concatenate([np.empty(0, np.uint64), *(keys_of(chunk, column) for chunk in values.chunks)])


def _float_keys(raw_N: F64) -> U64:
    # Adding zero turns -0.0 into 0.0, which is equal but has other bits.
    keys_N: U64 = np.empty(len(raw_N), np.uint64)
    hash_integers((raw_N + 0.0).view(np.int64), ODD, keys_N)
    keys_N[np.isnan(raw_N)] = NULL
    return keys_N


def _floats(values: pa.ChunkedArray) -> F64:
    """[N] values as float64: numbers unchanged, times in their unit, texts by rank in sort order; NaN for null."""
    found = values.type
    if pa.types.is_temporal(found):
        values = values.cast(pa.int32() if found.bit_width == 32 else pa.int64())
    elif not (pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_boolean(found)):
        different = pc.unique(values.cast(pa.large_string())).drop_null()
        ordered = different.take(pc.sort_indices(different))
        values = pc.index_in(values.cast(pa.large_string()), ordered)
    raw_N: F64 = np.concatenate([np.empty(0), *(numeric_values(chunk)[0] for chunk in values.chunks)])
    raw_N[np.asarray(pc.is_null(values))] = np.nan
    return raw_N


def _filled(values: pa.ChunkedArray, column: InputColumn, where: Sequence[str], starts: I64) -> F32:
    """[N] values as training gets them, file by file, so that an error names the file."""
    out_N: F32 = np.empty(len(values), np.float32)
    for name, begin, end in zip(where, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        at = begin
        for chunk in values.slice(begin, end - begin).chunks:
            fill_floats(chunk, column, name, at - begin, out_N[at : at + len(chunk)])
            at += len(chunk)
    return out_N
