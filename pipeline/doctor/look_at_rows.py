"""The doctor's one pass over the files: a sample of bounded size, spread evenly over files and row groups."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from pipeline.data.files import InputColumn, SchemaCheck, columns_of, listings_of
from pipeline.data.identity import Begun
from pipeline.data.split_files import files_of_splits
from pipeline.doctor.columns import label_values, seen_column
from pipeline.doctor.sample import allotted, sample_rows, spaced
from pipeline.doctor.seen import SeenFile, SeenRows
from pipeline.doctor.times import may_be_time
from pipeline.features.derived import inputs_of
from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.types import concatenated
from pipeline.messages.uris import is_remote
from pipeline.settings import SPLITS
from pipeline.workflow import Workflow

MAX_CELLS = 1 << 24
"""Maximum number of values kept, over all columns: at 20 bytes each, 320 MiB."""
MAX_SEEN_BYTES = 1 << 29
"""Maximum size of the rows kept, in bytes, as Arrow tables."""
MAX_SEEN_FILES = 256
"""Maximum number of files opened per split, evenly spaced."""
WEIGHTS = {"train": 2, "validation": 1, "test": 1}
"""Weights of the splits in the sample, if there are more rows than can be kept."""


def look_at_rows(workflow: Workflow, begun: Begun | None = None) -> SeenRows:
    """Read the sample. `begun`: data of a run; if it has spans, its training files that still exist are read instead of
    those named in the workflow. Raises ValueError, with the file and the column, if the files do not fit the workflow
    or have values that training rejects."""
    columns = columns_of(workflow.data, workflow.metrics.group)
    check = SchemaCheck(columns)
    found: list[SeenFile] = []
    total = 0.0
    for split, paths in _files_of(workflow, begun or Begun()).items():
        some = spaced(paths, MAX_SEEN_FILES)
        opened = [_found(path, split, check) for path in some]
        check.end_split(f"data.{split}")
        found += opened
        total += sum(file.num_rows for file in opened) * len(paths) / max(1, len(some))
    if not any(file.num_rows for file in found if file.split == "train"):
        raise ValueError(f"data.train: no file of {', '.join(workflow.data.train)} has rows; name files that have")
    check.end()
    inputs = inputs_of(workflow.data.features, [column.name for column in columns])
    others = _times(found, {*inputs, *(column.name for column in columns)})
    tables, files, places = [], [], []
    names = list(dict.fromkeys([*(column.name for column in columns), *inputs, *others]))
    quotas = _quotas(found, len(names))
    for file, quota in zip(found, quotas, strict=True):
        if quota:
            table, rows_N = sample_rows(file.path, names, quota)
            tables.append(table)
            places.append(rows_N)
            files.append(replace(file, num_seen=len(rows_N)))
    table = concatenated(tables)
    labels = [column for column in columns if column.setting == "data.labels" and not column.is_number_label]
    if not labels:
        raise ValueError("the doctor needs a label that is 0 or 1, and data.labels has none")
    features = [column for column in columns if column.number or column.has_rows]
    starts = np.cumsum([0, *(file.num_seen for file in files)])
    where = [str(file.path) for file in files]
    return SeenRows(
        files=tuple(files),
        total_rows=round(total),
        features={column.name: seen_column(table, column, check.kinds, where, starts) for column in features},
        others={name: seen_column(table, InputColumn(name, ""), check.kinds, where, starts) for name in others},
        labels_NT=np.stack([label_values(table, column, where, starts) for column in labels], axis=1),
        label_names=tuple(column.name for column in labels),
        file_N=np.repeat(np.arange(len(files), dtype=np.int32), [file.num_seen for file in files]),
        row_N=np.concatenate(places),
        table=table,
    )


def _files_of(workflow: Workflow, begun: Begun) -> dict[str, Sequence[DataFile]]:
    """Files of each split."""
    if not workflow.data.spans_by or not begun.splits:
        return {split: listing.files for split, listing in listings_of(workflow.data).items()}
    files = files_of_splits(workflow.data, begun)
    there = [file for file in files["train"] if is_remote(file.place) or os.path.exists(file.place)]
    if not there:
        raise ValueError(f"none of the {len(files['train']):,} training files of the run still exists; restore some")
    return {**files, "train": there}


def _found(path: DataFile, split: str, check: SchemaCheck) -> SeenFile:
    with open_file(path) as file:
        check.check(path, file.schema_arrow, alone=False)
        metadata = file.metadata
        num_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        return SeenFile(path, split, file.schema_arrow, metadata.num_rows, num_bytes)


def _times(found: Sequence[SeenFile], used: Collection[str]) -> list[str]:
    """Names of columns that exist in every file, are not used by the workflow and may be times."""
    first = found[0].schema
    return [
        field.name
        for field in first
        if field.name not in used and may_be_time(field.name, field.type)
        if all(file.schema.get_all_field_indices(field.name) for file in found)
        if len(first.get_all_field_indices(field.name)) == 1
    ]


def _quotas(found: Sequence[SeenFile], num_columns: int) -> list[int]:
    """Number of rows to read from each file."""
    total = sum(file.num_rows for file in found)
    row_bytes = max(1, sum(file.num_bytes for file in found) // max(1, total))
    cap = max(1, min(MAX_CELLS // num_columns, MAX_SEEN_BYTES // row_bytes))
    rows = [sum(file.num_rows for file in found if file.split == split) for split in SPLITS]
    of_splits = dict(zip(SPLITS, allotted(rows, [WEIGHTS[split] for split in SPLITS], cap), strict=True))
    quotas: list[int] = []
    for split in SPLITS:
        wanted = [file.num_rows for file in found if file.split == split]
        quotas += allotted(wanted, [1.0] * len(wanted), of_splits[split])
    return quotas
