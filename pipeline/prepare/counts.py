"""Distinct values of a column and their counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.data.files import InputColumn
from pipeline.files.types import is_list, value_of
from pipeline.records import I64, U64


class Counts(NamedTuple):
    """Unique values, sorted by (key, value), and the number of occurrences of each."""

    values_U: pa.Array
    keys_U: U64
    counts_U: I64

    @property
    def size(self) -> int:
        return len(self.keys_U)

    def take(self, at: NDArray[np.int64]) -> Counts:
        return Counts(self.values_U.take(pa.array(at)), self.keys_U[at], self.counts_U[at])


def keys_of(values: pa.Array, name: str) -> U64:
    """[N] keys of integers or strings in a workflow's category `name`; nulls get the key of a missing value."""
    # Imported here: its kernels need Numba, and importing Numba takes longer than a small preparation.
    from pipeline.data import decode

    return decode.keys_of(values, InputColumn(name, "data.categories", table=name))


def chunks(column: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    """Arrays of a column's values, or of the elements if they are lists."""
    arrays = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [array.flatten() if is_list(array.type) else array for array in arrays]


def joined(parts: Sequence[Counts]) -> Counts:
    """Concatenation of the parts."""
    values, keys, counts = zip(*parts, strict=True)
    return Counts(pa.concat_arrays(values), np.concatenate(keys), np.concatenate(counts))


def summed(parts: Sequence[Counts]) -> Counts:
    """Sum the counts of parts, which may be unsorted and share values. Each value occurs once in the result."""
    whole = joined(parts)
    counts, same_key, same_U = _sorted(whole, np.argsort(whole.keys_U))
    if (same_key & ~same_U).any():
        # Different values share a key. Sorting by both is slow, so it is reserved for this rare case.
        both = pa.table({"key": whole.keys_U, "value": whole.values_U})
        order = pc.sort_indices(both, [("key", "ascending"), ("value", "ascending")])
        counts, same_key, same_U = _sorted(whole, order.to_numpy())
    first = np.flatnonzero(np.concatenate([np.ones(min(1, counts.size), np.bool_), ~(same_key & same_U)]))
    once = counts.take(first)
    return once._replace(counts_U=np.add.reduceat(counts.counts_U, first)) if len(first) else once


def _sorted(counts: Counts, order: NDArray[np.int64]) -> tuple[Counts, NDArray[np.bool_], NDArray[np.bool_]]:
    """Reorder the entries. Return them and two boolean arrays for all entries except the first: True if the entry has
    the same key, or the same value, as the previous one."""
    counts = counts.take(order)
    same = pc.equal(counts.values_U[1:], counts.values_U[:-1]).to_numpy(zero_copy_only=False)
    return counts, counts.keys_U[1:] == counts.keys_U[:-1], same.astype(np.bool_)


def counted(column: pa.ChunkedArray | pa.Array, name: str) -> Counts:
    """Count the values of a column of integers, strings, dictionaries, or lists of these. Nulls are not counted."""
    empty = pa.array([], value_type(column.type))
    return summed([_counted(chunk, name) for chunk in [empty, *chunks(column)]])


def value_type(found: pa.DataType) -> pa.DataType:
    """Value type of a column type, inside lists and dictionaries."""
    return value_of(found.value_type if is_list(found) else found)


def _counted(chunk: pa.Array, name: str) -> Counts:
    coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
    counts_D = np.bincount(coded.indices.drop_null().to_numpy(), minlength=len(coded.dictionary))
    at = np.flatnonzero(coded.dictionary.is_valid().to_numpy(zero_copy_only=False) & (counts_D > 0))
    values = coded.dictionary.take(pa.array(at))
    return Counts(values, keys_of(values, name), counts_D[at])
