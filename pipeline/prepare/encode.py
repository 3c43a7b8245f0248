"""Row groups of the output: the rows of each split in groups, in which texts are dictionaries; and unique keys.

The texts of a column are numbered once for a part, by their keys, which are needed anyway. Each group then gets a
dictionary of the texts that occur in it: Parquet would write, and readers would hash, unused ones as well. For 250,000
rows of Criteo's layout this takes 0.11 s of a core; dictionaries made by Arrow, and keys of their texts, took 0.28.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.data.decode import texts, validity
from pipeline.data.files import SPLITS
from pipeline.kernels.encode_texts import Bytes, find_firsts, gather_texts, number_group
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.prepare.splits import I8
from pipeline.prepare.uniques import keys_of
from pipeline.records import I32, U32, U64

ROW_GROUP = 1 << 16
"""Rows of a row group. `Source`, which shuffles, reads 2.0 M rows of Criteo's layout per second and core; with groups
of 128 K rows 2.3 M, but then the default shuffle window would hold a single group, and neighbours in the log would stay
neighbours."""
MAX_BYTES = (1 << 31) - 1
"""Maximum bytes of an array of texts: Arrow's offsets have 32 bits."""


class EncodedPart(NamedTuple):
    """A part in row groups."""

    splits: dict[str, list[pa.Table]]
    """Row groups of each split that has rows of the part, in order."""
    keys: dict[str, U64]
    """Unique keys of each column of texts, in order of first appearance."""


def encode(table: pa.Table, split_N: I8) -> EncodedPart:
    """Divide the rows among splits and row groups, and encode the texts."""
    rows = {name: np.flatnonzero(split_N == place).astype(np.int32) for place, name in enumerate(SPLITS)}
    rows = {name: rows_S for name, rows_S in rows.items() if len(rows_S)}
    groups = [rows_S[at : at + ROW_GROUP] for rows_S in rows.values() for at in range(0, len(rows_S), ROW_GROUP)]
    is_text = {name: pa.types.is_string(c.type) or pa.types.is_binary(c.type) for name, c in _columns(table)}
    numbers, arrays, keys = KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK), {}, {}
    for name, column in _columns(table):
        if is_text[name]:
            arrays[name], keys[name] = encode_groups(column, name, groups, numbers)
    others = table.drop_columns(list(arrays)).combine_chunks()
    splits: dict[str, list[pa.Table]] = {}
    group = 0
    for split, rows_S in rows.items():
        of_split = others if len(rows_S) == len(others) else others.filter(pa.array(split_N == SPLITS.index(split)))
        splits[split] = []
        for at in range(0, len(rows_S), ROW_GROUP):
            values = dict(_columns(of_split.slice(at, ROW_GROUP))) | {name: arrays[name][group] for name in arrays}
            splits[split].append(pa.table({name: values[name] for name in table.column_names}))
            group += 1
    return EncodedPart(splits, keys)


def _columns(table: pa.Table) -> zip[tuple[str, pa.ChunkedArray]]:
    return zip(table.column_names, table.columns, strict=True)


class _Numbered(NamedTuple):
    """Texts of a column with a number for each row."""

    numbers_N: I32
    """Numbers in order of first appearance; of a null, any."""
    bits: Bytes
    at: int
    """Validity bitmap (empty: no nulls), and its first bit."""
    data: Bytes
    offsets: I32
    firsts_U: I32
    """Place of each number's text among `offsets`."""
    keys_U: U64
    """Keys of the texts, and perhaps that of the bytes at a null."""


def encode_groups(
    column: pa.ChunkedArray, name: str, groups: Sequence[I32], table: KeyTable
) -> tuple[list[pa.DictionaryArray], U64]:
    """Return a column of texts as a dictionary array for each group of rows, and the unique keys of the texts in a
    workflow's category `name`, in order of first appearance. All rows but those of nulls must be in a group. `table` is
    overwritten."""
    found = _number(column, name, table)
    stamps_U, base, arrays = np.zeros(len(found.keys_U), np.uint32), 1, []
    for rows_G in groups:
        arrays.append(_encode_group(found, rows_G, column.type, stamps_U, base))
        base += len(arrays[-1].dictionary)
    return arrays, found.keys_U[stamps_U > 0]


def _number(column: pa.ChunkedArray, name: str, table: KeyTable) -> _Numbered:
    """Number the texts by key, or, if different ones share a key or a single array cannot hold them, by Arrow."""
    if column.nbytes <= MAX_BYTES:
        array = column.combine_chunks()
        data, offsets = texts(array)
        keys_N, numbers_N = keys_of(array, name), np.empty(len(array), np.int32)
        table.clear()
        table.add(keys_N, numbers_N)
        firsts_U = np.empty(len(table.keys_U), np.int32)
        if find_firsts(data, offsets, numbers_N, firsts_U):
            return _Numbered(numbers_N, *validity(array), data, offsets, firsts_U, table.keys_U)
    array = column.dictionary_encode().combine_chunks()
    firsts_U = np.arange(len(array.dictionary), dtype=np.int32)
    numbers_N = array.indices.fill_null(0).to_numpy().astype(np.int32)
    return _Numbered(numbers_N, *validity(array), *texts(array.dictionary), firsts_U, keys_of(array.dictionary, name))


def _encode_group(found: _Numbered, rows_G: I32, kind: pa.DataType, stamps_U: U32, base: int) -> pa.DictionaryArray:
    most = min(len(rows_G), len(stamps_U))
    own_G, which_G, ends_G = (np.empty(size, np.int32) for size in (len(rows_G), most, most + 1))
    valid_G = np.zeros(-(-len(rows_G) // 8) if len(found.bits) else 0, np.uint8)
    num, nulls = number_group(
        found.numbers_N, rows_G, found.bits, found.at, found.offsets, found.firsts_U, stamps_U, base, own_G, valid_G,
        which_G, ends_G,
    )  # fmt: skip
    data = np.empty(ends_G[num], np.uint8)
    gather_texts(found.data, found.offsets, found.firsts_U, which_G[:num], ends_G, data)
    dictionary = pa.Array.from_buffers(kind, num, [None, pa.py_buffer(ends_G[: num + 1]), pa.py_buffer(data)])
    bits = pa.py_buffer(valid_G) if nulls else None
    indices = pa.Array.from_buffers(pa.int32(), len(rows_G), [bits, pa.py_buffer(own_G)], nulls)
    # The kernel makes no index out of bounds, so Arrow need not look for one.
    return pa.DictionaryArray.from_arrays(indices, dictionary, safe=False)
