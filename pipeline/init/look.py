"""Inspection of data files: a sample of their rows, and a description of each column."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.files.find import DataFile, begins_with_mark
from pipeline.files.flat import FlatFile, open_file, unite
from pipeline.files.stores import stamp_of
from pipeline.files.types import as_python, concatenated
from pipeline.init.choice import LABEL_NAMES
from pipeline.init.columns import Look, described_column, unread_column, with_unread, words_of
from pipeline.init.text import chosen_files, header_of, look_at_text

LOOKED_AT_ROWS = 200_000
DECODED, ROW_GROUPS = 16, 48
"""Maximum number of rows decoded per sampled row; but up to three row groups of a file, and ROW_GROUPS of all, are
decoded in any case."""


def look_at_labelled(
    paths: Sequence[DataFile], labels: Sequence[str], skip: float | None, unread: Collection[str] = ()
) -> tuple[Look, list[DataFile]]:
    """Inspect the files that have a label (see `look_at_files`). Also return the files to score, which have all columns
    except the labels. `labels`: names of the labels; if empty, columns with a label name."""
    look, others = None, list[DataFile]()
    try:
        look = look_at_files(paths, skip, unread)
    except ValueError:
        if len(paths) == 1:
            raise
    if look is None or any(look.lacking.values()):
        names = {path: {*_names_in(path)} for path in paths}
        most = max(names.values(), key=len)
        known = most & ({*labels} or {name for name in most if words_of(name) in LABEL_NAMES})
        others = [path for path, there in names.items() if known and there == most - known]
    if others or look is None:
        look = look_at_files([path for path in paths if path not in others], skip, unread)
    for column in look.columns:
        if column.note and column.kind is None and (column.name in labels or words_of(column.name) in LABEL_NAMES):
            raise ValueError(column.note)
    return look, others


def look_at_files(paths: Sequence[DataFile], skip: float | None = None, unread: Collection[str] = ()) -> Look:
    """Inspect Parquet or text files with the same columns. `skip`: share of unreadable lines of text that may be
    omitted. `unread`: names of columns that are not read. Raises ValueError if the files are of other or mixed kinds.
    """
    parquet = [begins_with_mark(path) for path in paths]
    if all(parquet):
        return _parquet(paths, unread)
    if any(parquet):
        other = paths[parquet.index(False)]
        raise ValueError(f"{other} is no Parquet file, and {paths[parquet.index(True)]} is one; give files of one kind")
    return look_at_text(paths, skip, unread)


def _names_in(path: DataFile) -> list[str]:
    """Column names of a file; empty for text without a header."""
    if begins_with_mark(path):
        with open_file(path) as file:
            return list(file.schema_arrow.names)
    return header_of(path) if stamp_of(str(path)).size else []


def _parquet(paths: Sequence[DataFile], unread: Collection[str]) -> Look:
    rows: list[int] = []
    ends: dict[str, list[Any]] = {}
    schemas: dict[DataFile, pa.Schema] = {}
    for path in paths:
        with open_file(path) as file:
            rows.append(file.metadata.num_rows)
            schemas[path] = file.schema_arrow
            names = file.schema_arrow.names
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ValueError(f"{path}: column {twice!r} is there {names.count(twice)} times; rename all but one")
            for name in (name for name in names if name not in unread):
                ends.setdefault(name, []).extend(_ends(file, name))
    columns = unite(schemas)
    read = [column for column in columns if not column.conflict and column.name not in unread]
    for column in read:
        if column.lacking:
            print(column.note(len(paths)))
    names, chosen = [column.name for column in read], chosen_files(paths)
    tables = [_spread_rows(paths[number], names, len(chosen)) for number in chosen]
    file_of = np.repeat(chosen, [table.num_rows for table in tables])
    types = pa.schema([(column.name, column.type) for column in read])
    sample = concatenated([types.empty_table(), *tables])
    found = {name: described_column(name, sample.column(name), ends[name]) for name in names}
    found |= {
        column.name: unread_column(column.name, column.type, len(sample), column.conflict)
        for column in columns if column.name not in found
    }  # fmt: skip
    lacking = {column.name: frozenset(column.lacking) for column in columns}
    in_order = tuple(found[column.name] for column in columns)
    return Look(tuple(paths), tuple(rows), with_unread(sample, in_order), file_of, in_order, None, lacking=lacking)


def _spread_rows(path: DataFile, names: Sequence[str], num_files: int) -> pa.Table:
    """Sample rows of a Parquet file, one of `num_files`, in order: from all row groups, or, if the file is large, from
    one drawn in each of several ranges of row groups."""
    quota, draw = LOOKED_AT_ROWS // num_files, np.random.default_rng(zlib.crc32(path.name.encode()))
    with open_file(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        groups = [group for group, size in enumerate(sizes) if size]
        most = max(min(3, ROW_GROUPS // num_files), int(DECODED * quota * len(sizes) / max(1, sum(sizes))))
        if most < len(groups):
            edges = np.linspace(0, len(groups), most + 1).astype(int)
            groups = [groups[n] for n in draw.integers(edges[:-1], edges[1:])]
        share = quota / max(1, sum(sizes[group] for group in groups))
        tables = []
        for batch in file.iter_batches(1 << 16, columns=names, row_groups=groups, use_threads=False):
            table = pa.Table.from_batches([batch])
            tables.append(table if share >= 1 else table.filter(pa.array(draw.random(len(table)) < share)))
    return concatenated([pa.table({name: pa.nulls(0) for name in names}), *tables])


def _ends(file: FlatFile, name: str) -> list[Any]:
    """Minima and maxima of a column from the statistics of the row groups that have them."""
    known = [one for one in file.statistics(name) if one is not None and one.has_min_max]
    found = file.schema_arrow.field(name).type
    if pa.types.is_timestamp(found) or pa.types.is_date32(found):
        return [as_python(pa.scalar(end, found)) for one in known for end in (one.min_raw, one.max_raw)]
    ends = [end for one in known for end in (one.min, one.max) if not isinstance(end, bytes | str)]
    return [float(end) if isinstance(end, Decimal) else end for end in ends]
