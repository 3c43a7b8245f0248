"""Inspection of data files: a sample of their rows, and a description of each column."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.files.find import DataFile, begins_with_mark
from pipeline.files.flat import FlatFile, open_file, unite
from pipeline.files.stores import stamp_of
from pipeline.files.types import as_python, concatenated
from pipeline.init.columns import Look, described_column
from pipeline.init.labels import LABEL_NAMES
from pipeline.init.names import words_of
from pipeline.init.text import header_of, look_at_text, spaced

LOOKED_AT_ROWS = 200_000
LOOKED_AT_FILES = 16
"""Maximum number of sampled files, evenly spaced among all."""
DECODED = 16
"""Maximum number of rows decoded per sampled row; at least three row groups are decoded."""


def look_at_labelled(
    paths: Sequence[DataFile], labels: Sequence[str], skip: float | None
) -> tuple[Look, list[DataFile]]:
    """Inspect the files that have a label (see `look_at_files`). Also return the files to score, which have all columns
    except the labels. `labels`: names of the labels; if empty, columns with a label name."""
    try:
        look = look_at_files(paths, skip)
        if not any(look.lacking.values()):
            return look, []
    except ValueError:
        if len(paths) == 1:
            raise
        look = None
    names = {path: {*_names_in(path)} for path in paths}
    most = max(names.values(), key=len)
    known = most & ({*labels} or {name for name in most if words_of(name) in LABEL_NAMES})
    others = [path for path, there in names.items() if known and there == most - known]
    if others or not look:
        look = look_at_files([path for path in paths if path not in others], skip)
    return look, others


def look_at_files(paths: Sequence[DataFile], skip: float | None = None) -> Look:
    """Inspect Parquet or text files with the same columns. `skip`: share of unreadable lines of text that may be
    omitted. Raises ValueError if the files are of other or mixed kinds, or their columns conflict."""
    parquet = [begins_with_mark(path) for path in paths]
    if all(parquet):
        return _parquet(paths)
    if any(parquet):
        other = paths[parquet.index(False)]
        raise ValueError(f"{other} is no Parquet file, and {paths[parquet.index(True)]} is one; give files of one kind")
    return look_at_text(paths, LOOKED_AT_FILES, skip)


def _names_in(path: DataFile) -> list[str]:
    """Column names of a file; empty for text without a header."""
    if begins_with_mark(path):
        with open_file(path) as file:
            return list(file.schema_arrow.names)
    return header_of(path) if stamp_of(str(path)).size else []


def _parquet(paths: Sequence[DataFile]) -> Look:
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
            for name in names:
                ends.setdefault(name, []).extend(_ends(file, name))
    columns = unite(schemas)
    if conflict := next((column.conflict for column in columns if column.conflict), ""):
        raise ValueError(conflict)
    for column in columns:
        if column.lacking:
            print(column.note(len(paths)))
    chosen = spaced(range(len(paths)), LOOKED_AT_FILES)
    quota = LOOKED_AT_ROWS // len(chosen)
    names = [column.name for column in columns]
    tables = [_spread_rows(paths[number], names, quota) for number in chosen]
    file_of = np.repeat(chosen, [table.num_rows for table in tables])
    types = pa.schema([(column.name, column.type) for column in columns])
    sample = concatenated([types.empty_table(), *tables])
    limits = {name: (min(values), max(values)) for name, values in ends.items() if values}
    found = tuple(described_column(name, sample.column(name), limits) for name in names)
    lacking = {column.name: frozenset(column.lacking) for column in columns}
    return Look(tuple(paths), tuple(rows), sample, file_of, found, None, lacking=lacking)


def _spread_rows(path: DataFile, names: Sequence[str], quota: int) -> pa.Table:
    """Sample about `quota` rows of a Parquet file, in order, from all row groups, or, if the file is large, from evenly
    spaced row groups including the first and the last."""
    with open_file(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        groups = [group for group, size in enumerate(sizes) if size]
        most = max(3, int(DECODED * quota * len(sizes) / max(1, sum(sizes))))
        groups = [groups[n] for n in np.unique(np.linspace(0, len(groups) - 1, most).astype(int))] if groups else []
        share, draw = quota / max(1, sum(sizes[group] for group in groups)), np.random.default_rng(0)
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
