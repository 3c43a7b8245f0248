"""A servable as seen by the HTTP server: its columns, scores and counters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.data.outside import BadValues, Outside
from pipeline.features.times import TimeInput
from pipeline.files.description import inner_of_name
from pipeline.records import F32
from pipeline.serving.features import Features, with_keys
from pipeline.serving.http.tensors import DATATYPES
from pipeline.serving.open_servable import Backend, OpenServable
from pipeline.serving.predictor import Scored
from pipeline.serving.scored_files import score_columns, score_fields
from pipeline.serving.servable import open_files
from pipeline.workflow import Workflow

DATATYPES_OF_KINDS = {"integers": "INT64", "text": "BYTES"}
"""Datatype of the Open Inference Protocol in the model metadata, by the kind of a column's values."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A column that the model reads. All columns are required."""

    name: str
    datatype: str
    """Datatype of the Open Inference Protocol in the model metadata: INT64, FP32, BYTES, ..."""
    is_list: bool
    time: TimeInput | None = None
    """Meaning of its values, if they are times."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Scores of the rows of one request."""

    scores: Mapping[str, F32]
    """[B] float32 scores of each output, in the order of `score_fields`; NaN for a row without a score."""
    unknown: Mapping[str, int]
    """Number of keys without a row, by column."""
    bad: Mapping[str, int] = field(default_factory=dict)
    """Number of values outside the domain of their column, by column."""


def inputs_of(features: Features, unsigned: Collection[str] = ()) -> tuple[InputSpec, ...]:
    """Columns that the model reads: numbers, categories, lists of sequences, and inputs of derived features.
    `unsigned`: names of the columns of unsigned 64-bit integers."""
    made, times = features.made, features.times
    read = {n: InputSpec(n, datatype_of(kind), False, times.get(n)) for n, kind in features.inputs.items()}
    # Rounding to float32 before a shift is added could lose all that distinguishes two values.
    numbers = [
        read.get(number.name, InputSpec(number.name, "FP64" if number.shift else "FP32", is_list=False))
        for number in features.numbers
        if number.name not in made
    ]
    keyed = with_keys(features.categories, features.sequences)
    others = [
        spec for name, spec in read.items() if name not in {*(number.name for number in features.numbers), *keyed}
    ]
    categories = []
    for name in keyed:
        if name in made:
            continue
        kind = features.kinds[name]
        datatype = "UINT64" if name in unsigned else DATATYPES_OF_KINDS[kind.removeprefix("lists of ")]
        categories.append(InputSpec(name, datatype, kind.startswith("lists")))
    in_lists = [InputSpec(name, "FP32", is_list=True) for sequence in features.sequences for name in sequence.numbers]
    return (*numbers, *categories, *in_lists, *others)


def datatype_of(name: str) -> str:
    """Datatype of a column that features read, from the name of its Arrow type. Times are integers in the column's
    unit."""
    inner = inner_of_name(name)
    if inner.startswith(("string", "large_string", "binary", "large_binary")):
        return "BYTES"
    if inner.startswith(("float", "double", "halffloat")):
        return "FP64" if inner.startswith("double") else "FP32"
    return "BOOL" if inner.startswith("bool") else "UINT64" if inner.startswith("uint64") else "INT64"


class ServedModel:
    """A servable for concurrent use by many threads. After `close`, attributes may still be read, but methods may not
    be called."""

    def __init__(self, opened: OpenServable) -> None:
        self._opened, features = opened, opened.features
        self.name, self.version = opened.manifest.name, opened.manifest.digest
        self.outputs: tuple[str, ...] = tuple(score_fields(opened.predictor.tasks))
        self.features = features.digest
        """Digest of the feature definition. A servable is never replaced by one with different features."""
        self._columns = with_keys(features.categories, features.sequences)
        self.inputs = inputs_of(features, opened.manifest.unsigned)

    def predict(self, table: pa.Table) -> Answer:
        """Score a table with the columns of `inputs`, one chunk each. Raises ValueError, with the column's name, if
        values are invalid, and OSError if a page cannot be read or is damaged."""
        outside = Outside(self._opened.predictor.bad_values)
        pieces: list[Scored] = list(self._opened.predictor.batches(table, outside, name="the request"))
        unknown_F = sum((scored.unknown_F for scored in pieces), np.zeros(len(self._columns), np.int64))
        scores_NT = np.concatenate([scored.scores_BT for scored in pieces])
        columns = [
            column.to_numpy(zero_copy_only=False) for column in score_columns(scores_NT, self._opened.predictor.tasks)
        ]
        unknown = dict(zip(self._columns, unknown_F.tolist(), strict=True))
        scores = dict(zip(self.outputs, columns, strict=True))
        return Answer(scores, {name: n for name, n in unknown.items() if n}, outside.counts)

    def counters(self) -> Mapping[str, int]:
        """Totals since the servable was opened, by name, for metrics."""
        return self._opened.reader.table.cache.counts

    def example(self) -> pa.Table:
        """One row in which every number is 0 and everything else is null."""
        numbers = {number.name for number in self._opened.features.numbers}

        def column(spec: InputSpec) -> pa.Array:
            kind = pa.string() if spec.datatype == "BYTES" else DATATYPES[spec.datatype].arrow
            is_number = spec.name in numbers and spec.datatype.startswith("FP")
            return pa.array([0.0], kind) if is_number else pa.nulls(1, pa.list_(kind) if spec.is_list else kind)

        return pa.table({spec.name: column(spec) for spec in self.inputs})

    def close(self) -> None:
        self._opened.close()


def open_served(
    folder: Path, memory_bytes: int, given: Workflow | None, backend: Backend | None, bad_values: BadValues = "clip"
) -> ServedModel:
    """Open the servable in a folder for the server. Raises what `open_servable` raises."""
    return ServedModel(OpenServable(open_files(folder), memory_bytes, given, backend, bad_values))
