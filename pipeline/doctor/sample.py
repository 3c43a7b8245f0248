"""Sampling of files: which files, row groups and rows to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from pipeline.files.find import DataFile
from pipeline.files.flat import FlatFile, open_file
from pipeline.records import I64

T = TypeVar("T")
PLACES = 16
"""Maximum number of row groups of a file to sample rows from, if not all rows are read."""


def spaced(items: Sequence[T], most: int) -> list[T]:
    """At most `most` items, evenly spaced."""
    return list(items) if len(items) <= most else [items[n * len(items) // most] for n in range(most)]


def allotted(wanted: Sequence[int], weights: Sequence[float], total: int) -> list[int]:
    """Divide a total by weight, giving each at most the amount wanted; any excess goes to the others."""
    given = [0] * len(wanted)
    left = total
    open_ones = [n for n, want in enumerate(wanted) if want]
    while open_ones and left > 0:
        weight = sum(weights[n] for n in open_ones)
        parts = {n: max(1, int(left * weights[n] / weight)) for n in open_ones}
        full = [n for n in open_ones if wanted[n] <= parts[n]]
        for n in full or open_ones:
            given[n] = min(wanted[n], parts[n])
        if not full:
            break
        left -= sum(given[n] for n in full)
        open_ones = [n for n in open_ones if n not in full]
    return given


def sample_rows(path: DataFile, names: Sequence[str], quota: int) -> tuple[pa.Table, I64]:
    """Read at most `quota` rows of a Parquet file: all, or the first ones of evenly spaced row groups. Returns them and
    their row numbers in the file. Raises ValueError if the file is damaged."""
    with open_file(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        groups = [group for group, size in enumerate(sizes) if size]
        groups = spaced(groups, PLACES) if quota < sum(sizes) else groups
        given = allotted([sizes[group] for group in groups], [1.0] * len(groups), quota)
        schema = file.schema_arrow
        types = {name: schema.field(name).type if name in schema.names else pa.null() for name in names}
        tables, rows = [pa.schema(types.items()).empty_table()], [np.empty(0, np.int64)]
        for group, num in zip(groups, given, strict=True):
            if num:
                tables.append(_head(file, group, names, num))
                rows.append(np.arange(starts[group], starts[group] + num, dtype=np.int64))
    return pa.concat_tables(tables), np.concatenate(rows)


def _head(file: FlatFile, group: int, names: Sequence[str], num_rows: int) -> pa.Table:
    """The first rows of a row group; the rest is not decoded."""
    batches: list[pa.RecordBatch] = []
    left = num_rows
    for batch in file.iter_batches(min(num_rows, 1 << 16), row_groups=[group], columns=list(names), use_threads=False):
        batches.append(batch.slice(0, left))
        left -= len(batches[-1])
        if left <= 0:
            break
    return pa.Table.from_batches(batches).select(names)
