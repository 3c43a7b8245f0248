"""Metrics of scored files whose input has the labels; an evaluation of the run would report the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.data.decode import dictionary_keys, fill_floats, fill_keys, mask_labels
from pipeline.data.files import InputColumn, SchemaCheck, columns_of, plain
from pipeline.files.description import Description
from pipeline.files.flat import open_file
from pipeline.metrics.evaluation import Evaluation
from pipeline.monitor.report import evaluated
from pipeline.records import F32, U64, Array
from pipeline.serving.scored_files import SCORED_GROUP, ColumnReader, ScoredFile, output_fields, readable_columns
from pipeline.workflow import Workflow

TRUTH = ("data.labels", "data.weight", "metrics.group")
Judged = tuple[F32, F32, F32 | None, U64 | None]
"""Logits [N, T], labels [N, T], weights [N] or None, and groups [N] or None."""


def metrics_line(files: Sequence[ScoredFile], workflow: Workflow) -> str:
    """A line with the metrics of scored files; "" if a file lacks a label or there are no rows."""
    labels = workflow.data.labels
    if not readable_columns(files, with_values=True) >= set(labels) or not any(file.num_rows for file in files):
        return ""
    evaluation = Evaluation.of(workflow)
    for file in files:
        for piece in judged(file, workflow):
            add_scored(evaluation, piece)
    return evaluated({"split": "scored", **evaluation.result()})


def add_scored(evaluation: Evaluation, batch: Judged) -> None:
    """Add the rows of a batch that have a score."""
    has_score_B = ~np.isnan(batch[0]).any(axis=1)
    if has_score_B.any():
        some: Any = batch if has_score_B.all() else [None if one is None else one[has_score_B] for one in batch]
        evaluation.add(*some)


def check_truth(files: Sequence[ScoredFile], workflow: Workflow) -> None:
    """Raises ValueError if the files have the labels, but the columns of labels, weight or group have a wrong type.
    These are read only after scoring."""
    columns = [c for c in columns_of(workflow.data, workflow.metrics.group) if c.setting in TRUTH]
    if readable_columns(files, with_values=True) >= set(workflow.data.labels):
        check = SchemaCheck(columns)
        for file in files:
            with open_file(file.source) as source:
                check.check(file.source, source.schema_arrow)


def judged(file: ScoredFile, workflow: Workflow) -> Iterator[Judged]:
    """Yield batches of a scored file with their labels."""
    columns = columns_of(workflow.data, workflow.metrics.group, Description(canonical=file.source.canonical))
    columns = [column for column in columns if column.setting in TRUTH]
    logits, first_row = output_fields(workflow.data.all_tasks), 0
    with open_file(file.source) as source, open_file(file.out) as out:
        scores = ColumnReader(file.out, out, logits)
        for batch in source.iter_batches(SCORED_GROUP, columns=[column.name for column in columns], use_threads=False):
            values: dict[str, list[Any]] = {setting: [] for setting in TRUTH}
            for column in columns:
                array = plain(pa.chunked_array([batch.column(column.name)]), column, None, str(file.source))
                values[column.setting].append(_values(array.combine_chunks(), column, str(file.source), first_row))
            mask_labels(values["data.labels"], columns[: len(values["data.labels"])], str(file.source), first_row)
            logits_TN = [np.asarray(pa.chunked_array(array)) for array in scores.take(len(batch))]
            weights, groups = values["data.weight"], values["metrics.group"]
            yield (
                np.stack(logits_TN, axis=1),
                np.stack(values["data.labels"], axis=1),
                weights[0] if weights else None,
                groups[0] if groups else None,
            )
            first_row += len(batch)


def _values(array: pa.Array, column: InputColumn, where: str, first_row: int) -> Array:
    if column.is_group:
        keys_N: U64 = np.empty(len(array), np.uint64)
        fill_keys(array, column, dictionary_keys(array, column), keys_N)
        return keys_N
    floats_N: F32 = np.empty(len(array), np.float32)
    fill_floats(array, column, where, first_row, floats_N)
    return floats_N
