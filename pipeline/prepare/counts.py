"""Distinct values of a column and their counts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.files import InputColumn
from pipeline.features.side_files import COUNT, VALUE
from pipeline.files.types import is_list, value_of
from pipeline.records import U64


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
