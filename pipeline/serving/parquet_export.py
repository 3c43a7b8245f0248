"""Export of a commit's rows as a Parquet dataset of (table, value, vector), for other programs.

A row contains a key, not the value from which the key was computed. One pass over the categorical columns of the
training data finds the values. The values of each table are sorted externally by key (`value_runs.py`), like the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.data.files import InputColumn, columns_of, resolve
from pipeline.data.plain import plain
from pipeline.features.hashes import missing_of
from pipeline.files.flat import open_file
from pipeline.files.types import NOTHING, key_kind
from pipeline.machine.aside import WAYS_OUT
from pipeline.prepare.counts import Counts, counted, summed, value_type
from pipeline.records import U64
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.exporting import (
    EXPORTING,
    ExportSettings,
    claim_folder,
    record_file,
    record_of_export,
    remove_unfinished,
)
from pipeline.serving.sorted_runs import SortedPart, sorted_parts
from pipeline.serving.value_runs import values_between, write_runs
from pipeline.storage.durable import replacing
from pipeline.storage.files import Files
from pipeline.training.dense_state import merge_dense

SOURCE = b"pipeline.manifest"
"""Checksum of the commit's manifest, in the metadata of each file."""
ROWS_AT_ONCE = 1 << 18
"""Number of training rows read at once."""


@dataclass(frozen=True, slots=True)
class ValueTable:
    """A table, the columns whose values belong to it, and a column name for each key of missing or rare values."""

    name: str
    columns: tuple[str, ...]
    missing: dict[int, str]


def export_parquet(
    opened: OpenedCommit, out: Path, settings: ExportSettings, say: Callable[[str], None] = print
) -> tuple[int, int]:
    """Write the rows of a commit to Parquet files in `out`: `table`, `value` (integers as decimal text; null for the
    row of missing values), `key`, `vector` [D] and `first_order`, if the model has it. If a row's value does not occur
    in the training data, its table and value are null. Does nothing if the export is complete. Returns the same as
    `exported_rows`.

    Raises ValueError if the folder contains other files or the training data cannot be read.
    """
    files, record = Files(), record_of_export(opened, settings, "parquet")
    if (first := out / f"{0:04}.parquet").exists() and not record_file(out).exists():
        metadata = pq.read_schema(first).metadata or {}
        if metadata.get(SOURCE) != record.source.encode():
            raise ValueError(f"{out} has other files than the rows of commit {opened.held.number}; {WAYS_OUT}")
        remove_unfinished(out)
        return exported_rows(out)
    claim_folder(out, record, files)
    saved = merge_dense(opened.held.load_replicas())
    tables = value_tables(opened)
    runs = [sorted_values(opened, table, out / EXPORTING, files) for table in tables]
    row_bytes = 8 + 4 * opened.layout.num_weights
    metadata = {SOURCE: record.source, "pipeline.commit": str(opened.held.number)}
    for part in sorted_parts(opened, out / EXPORTING, saved, settings.memory, row_bytes, say):
        named = pa.nulls(len(part.keys_N), pa.string()), pa.nulls(len(part.keys_N), pa.large_string())
        for table, of_table in zip(tables, runs, strict=True):
            named = name_rows(table, values_between(of_table, part.begin, part.end), part.keys_N, named)
        write_rows(out / f"{part.number:04}.parquet", opened, part, named, metadata)
    remove_unfinished(out)
    return exported_rows(out)


def exported_rows(out: Path) -> tuple[int, int]:
    """Count the rows of exported files, and the rows whose value does not occur in the training data, from the file
    footers."""
    num_rows = num_unknown = 0
    for path in out.glob("*.parquet"):
        metadata = pq.read_metadata(path)
        num_rows += metadata.num_rows
        tables = (metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups))
        num_unknown += sum(table.null_count for table in tables)
    return num_rows, num_unknown


def value_tables(opened: OpenedCommit) -> list[ValueTable]:
    """Tables of the features, each with its columns."""
    categories = opened.features.categories
    columns: dict[str, list[str]] = {}
    for category in categories:
        columns.setdefault(category.table_name, []).append(category.name)
    rare = {c.name: c.rare for c in columns_of(opened.workflow.data) if c.rare}
    shared = {category.table_name: int(rare[category.name].shared) for category in categories if category.name in rare}
    return [
        ValueTable(
            table,
            tuple(names),
            {int(missing_of(n)): n for n in names} | ({shared[table]: names[0]} if table in shared else {}),
        )
        for table, names in columns.items()
    ]


def sorted_values(opened: OpenedCommit, table: ValueTable, folder: Path, files: Files) -> list[Path]:
    """Sort the values of a table's columns in the training data by key. Returns the paths of the sorted runs."""
    own = folder / f"values-{min(table.missing):016x}"
    files.make_folder(own)
    return write_runs(own, values_of(opened, table))


def values_of(opened: OpenedCommit, table: ValueTable) -> Iterator[Counts]:
    """Yield the values of a table's columns in the training data, in batches of rows."""
    paths, found = resolve(opened.workflow.data, "train", opened.features.read_kinds), set[pa.DataType]()
    for path in paths:
        with open_file(path) as file:
            there = [name for name in table.columns if name in file.schema_arrow.names]
            found |= {value_type(file.schema_arrow.field(name).type) for name in there}
    # All batches share a type that can represent every value; unsigned values may not fit int64.
    are_signed = all(one != pa.uint64() and key_kind(one) in ("integers", NOTHING) for one in found)
    wanted = pa.int64() if are_signed else pa.large_string()
    specs = [InputColumn(name, "data.categories", table=table.name) for name in table.columns]
    for path in paths:
        with open_file(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(table.columns), use_threads=False):
                rows = pa.Table.from_batches([batch])
                counts = [counted(plain(rows[s.name], s, None, str(path)), table.name) for s in specs]
                yield summed([one._replace(values_U=one.values_U.cast(wanted)) for one in counts])


def name_rows(
    table: ValueTable, values: Counts, keys_N: U64, named: tuple[pa.Array, pa.Array]
) -> tuple[pa.Array, pa.Array]:
    """Fill in the table and value of rows with a key in `values` or `table.missing`."""
    at_N = np.searchsorted(values.keys_U, keys_N).clip(max=max(0, values.size - 1))
    found_N = (values.keys_U[at_N] == keys_N) if values.size else np.zeros(len(keys_N), np.bool_)
    missing_N = np.isin(keys_N, np.array([*table.missing], np.uint64)) & ~found_N
    texts = pc.cast(values.values_U.take(pa.array(at_N[found_N])), pa.large_string())
    tables, column = named
    of_table = pa.array(found_N | missing_N)
    tables = pc.if_else(of_table, pa.scalar(table.name, pa.string()), tables)
    column = pc.replace_with_mask(column, pa.array(found_N), texts)
    return tables, column


def write_rows(
    path: Path, opened: OpenedCommit, part: SortedPart, named: tuple[pa.Array, pa.Array],
    metadata: dict[str | bytes, str],
) -> None:  # fmt: skip
    """Write a file of rows, unless it exists."""
    if path.exists():
        return
    dim, weights_NC = opened.layout.embedding_dim, part.weights_NC
    flat = pa.array(np.ascontiguousarray(weights_NC[:, :dim]).reshape(-1), pa.float32())
    ends = pa.array(np.arange(len(weights_NC) + 1) * dim, pa.int32())
    columns = {
        "table": named[0],
        "value": named[1],
        "key": pa.array(part.keys_N),
        "vector": pa.ListArray.from_arrays(ends, flat),
        **({"first_order": pa.array(np.ascontiguousarray(weights_NC[:, dim]))} if opened.layout.first_order else {}),
    }
    table = pa.table(columns).replace_schema_metadata(metadata | {"pipeline.features": opened.features.digest})
    with (
        replacing(path, path.parent / EXPORTING) as file,
        pq.ParquetWriter(file, table.schema, compression="zstd") as writer,
    ):
        writer.write_table(table)
