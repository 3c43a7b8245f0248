"""Vocabularies: an id for each value of a column that occurs often enough, made and used in bounded memory.

There are two steps. In the first, `count_part` saves the counts of values in each part (`runs.py`), next to its rows
(`steps.py`); then `merge` makes a column's vocabulary: ids 1, 2, ... in the order of (key, value), where the key is the
one used in training (`counts.keys_of`), so ids depend on the values and their counts alone. In the second,
`Vocabulary.look_up` turns the values of the saved rows into ids: 0 for an unknown or rare value, null for a null.

A vocabulary is a Parquet file of value, count and id in the order of ids. Its row groups are *partitions*: ranges of
keys. The first key of each is in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.files.flat import open_file
from pipeline.files.types import is_list
from pipeline.prepare.counts import Counts, chunks, counted, gather, in_dictionary, joined, keys_of
from pipeline.prepare.layout import PART, VOCABULARY, named, remove_folder
from pipeline.prepare.parts import Done
from pipeline.prepare.runs import few, merge_counts, write_runs
from pipeline.records import I32, I64, U64
from pipeline.storage.durable import damage_told, replacing
from pipeline.storage.files import Files

PARTITION_ROWS = 1 << 18
"""Values of a partition. With their keys, texts of 8 characters take 6 MB, texts of 200 characters 64 MB."""
CACHE_BYTES = 256 << 20
MAX_IDS = 2**31 - 1
FIRST_KEYS_ENTRY = b"first_keys"


def path_of(out: Path, column: str) -> Path:
    """Path of a column's vocabulary. Characters that a file name cannot have are quoted as in a URL."""
    return out / VOCABULARY / f"{quote(column, safe=' ')}.parquet"


def path_of_counts(folder: Path, part: str) -> Path:
    return folder / f"{part}.counts"


def count_part(table: pa.Table, folder: Path, part: str) -> str:
    """Save the counts of all columns of a part durably under the part's name in `folder`, which must exist. The bytes
    are the same every time. Returns the file's checksum."""
    return write_runs(path_of_counts(folder, part), {name: [counted(table[name], name)] for name in table.column_names})


def merge(folder: Path, column: str, minimum: int, out: Path) -> None:
    """Make the vocabulary `out` of the values that occur at least `minimum` times in all parts counted in `folder`.

    Does nothing if the vocabulary exists and is as it was written; if killed at any instant, the next call resumes.
    Several columns may be merged at once. Raises ValueError if there are more values than ids, or a file is damaged.
    Memory: a few times `FAN_IN` blocks and a partition; measured with texts of 8 characters from 60, 200 and 500 parts
    (113 M counts): 170 to 210 MB.
    """
    unfinished, record = (folder / f"{quote(column, safe='')}.{what}" for what in ("merging", "merged"))
    if not Done.is_true(record, column, out):
        files = Files()
        for path in (unfinished, out.parent):
            files.make_folder(path)
        parts = list(named(folder, rf"{PART}\.counts"))
        assert parts, f"no part was counted in {folder}"
        whole = merge_counts(few(parts, column, unfinished), column)
        often = (part.take(np.flatnonzero(part.counts_U >= minimum)) for part in whole)
        _write(out, often, column)
        Done.write(record, column, out)
    remove_folder(unfinished)


def _write(out: Path, parts: Iterator[Counts], column: str) -> None:
    first = next(parts)
    schema = pa.schema({"value": first.values_U.type, "count": pa.int64(), "id": pa.int32()})
    first_keys: list[int] = []
    num_ids = 0
    with replacing(out) as file, pq.ParquetWriter(file, schema, compression="lz4", use_dictionary=False) as writer:
        for counts in _partitions(chain([first], parts)):
            ids = np.arange(num_ids + 1, num_ids + 1 + counts.size)
            num_ids += len(ids)
            if num_ids > MAX_IDS:
                raise ValueError(
                    f"column {column!r}: more than {MAX_IDS:,} values occur often enough for an id; "
                    f"raise the minimum, or leave the column's values as they are"
                )
            writer.write_table(pa.table([counts.values_U, counts.counts_U, ids.astype(np.int32)], schema))
            first_keys.append(int(counts.keys_U[0]))
        writer.add_key_value_metadata({FIRST_KEYS_ENTRY: json.dumps(first_keys)})


def _partitions(parts: Iterator[Counts]) -> Iterator[Counts]:
    """Join and cut the parts to `PARTITION_ROWS` values each; the last may have fewer. None is empty."""
    left = next(parts)
    for whole in gather(parts, lambda part: part.size, PARTITION_ROWS):
        left = joined([left, whole])
        while left.size >= PARTITION_ROWS:
            yield left.slice(0, PARTITION_ROWS)
            left = left.slice(PARTITION_ROWS, left.size)
    if left.size:
        yield left


class Partition(NamedTuple):
    """A range of a vocabulary: values with their keys, in the order of (key, value); their ids are `first_id`,
    `first_id` + 1, ..."""

    values_U: pa.Array
    keys_U: U64
    first_id: int

    @property
    def nbytes(self) -> int:
        return int(self.values_U.nbytes + self.keys_U.nbytes)

    def ids_of(self, values_N: pa.Array, keys_N: U64) -> I32:
        """[N] ids of values, which are sorted by their keys; 0 for a value that is not in the partition."""
        ids_N = np.zeros(len(keys_N), np.int32)
        at_N = np.searchsorted(self.keys_U, keys_N)
        left = np.arange(len(keys_N))
        # One pass, or more if values share a key.
        while len(left := left[self._has_key(at_N[left], keys_N[left])]):
            same = pc.equal(self.values_U.take(pa.array(at_N[left])), values_N.take(pa.array(left)))
            is_same = same.fill_null(False).to_numpy(zero_copy_only=False)
            ids_N[left[is_same]] = at_N[left[is_same]] + self.first_id
            left = left[~is_same]
            at_N[left] += 1
        return ids_N

    def _has_key(self, at_N: I64, keys_N: U64) -> NDArray[np.bool_]:
        """[N] True if the key is at the place, which may be past the end."""
        inside = at_N < len(self.keys_U)
        inside[inside] = self.keys_U[at_N[inside]] == keys_N[inside]
        return inside


class Vocabulary:
    """A finished vocabulary. Several threads may look up values at once.

    Memory: `cache_bytes`, and for each thread one partition and its own column. Partitions are kept as they are read
    until the cache is full; the others are read at every lookup. None is evicted: each lookup goes through all
    partitions in the same order, so an evicted one would be read again soon. Measured with 226,000 unique texts of a
    part: 45 ms if all of 10 M values are in the cache, 0.7 s if none is.
    """

    def __init__(self, path: Path, column: str, cache_bytes: int = CACHE_BYTES) -> None:
        """Raises ValueError if the file is no vocabulary or is damaged."""
        self._path, self._column, self._room = path, column, cache_bytes
        with damage_told(path), open_file(path) as file:
            self._metadata = file.metadata
            sizes = [self._metadata.row_group(n).num_rows for n in range(self._metadata.num_row_groups)]
            self._first_ids = np.cumsum([1, *sizes])
            self._first_keys = np.array(json.loads(self._metadata.metadata[FIRST_KEYS_ENTRY]), np.uint64)
            if self._first_keys.shape != (len(sizes),) or file.schema_arrow.names != ["value", "count", "id"]:
                raise ValueError("expected the first key of each row group, and value, count and id")
        self._kept: dict[int, Partition] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        """Number of values that have an id."""
        return int(self._metadata.num_rows)

    def look_up(self, column: pa.ChunkedArray) -> pa.Array:
        """Ids (int32) of a column's values, which must have the type that was counted; for lists, lists of ids. A value
        without an id gets 0, a null stays null."""
        ids = self._look_up(chunks(column))
        if not is_list(column.type):
            return ids
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, ids, mask=pc.is_null(column).combine_chunks())

    def _look_up(self, arrays: list[pa.Array]) -> pa.Array:
        if not sum(map(len, arrays)):
            return pa.array([], pa.int32())
        column = in_dictionary(pa.chunked_array(arrays))
        ids = pa.array(self._ids_of(column.chunk(0).dictionary))
        return pa.concat_arrays([ids.take(chunk.indices) for chunk in column.chunks])

    def _ids_of(self, values_N: pa.Array) -> I32:
        keys_N = keys_of(values_N, self._column)
        order = np.argsort(keys_N)
        values_N, keys_N = values_N.take(pa.array(order)), keys_N[order]
        # Two values with one key may be in two partitions, so a partition's range includes the next one's first key.
        begins = np.searchsorted(keys_N, self._first_keys)
        pasts = np.append(np.searchsorted(keys_N, self._first_keys[1:], "right"), len(keys_N))
        ids_N = np.zeros(len(keys_N), np.int32)
        for number, (begin, end) in enumerate(zip(begins, pasts, strict=False)):
            if begin < end:
                partition = self._kept.get(number) or self._read(number)
                ids_N[begin:end] |= partition.ids_of(values_N[begin:end], keys_N[begin:end])
        out_N = np.empty_like(ids_N)
        out_N[order] = ids_N
        return out_N

    def _read(self, number: int) -> Partition:
        # Each read opens the file again, since other threads may be reading at the same time.
        with damage_told(self._path), open_file(self._path, metadata=self._metadata) as file:
            values = file.read_row_group(number, ["value"], use_threads=False).column(0).combine_chunks()
        partition = Partition(values, keys_of(values, self._column), int(self._first_ids[number]))
        with self._lock:
            if partition.nbytes <= self._room and number not in self._kept:
                self._room -= partition.nbytes
                self._kept[number] = partition
        return partition
