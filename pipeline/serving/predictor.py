"""Scoring of Arrow tables: columns to keys and numbers, keys to rows, rows to logits. Uses neither tiers nor driver."""

from __future__ import annotations

import queue
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.data.files import columns_of
from pipeline.data.outside import BadValues, Outside, check_rule
from pipeline.data.source import layout_of
from pipeline.data.table import TableReader
from pipeline.device.device import RAM
from pipeline.machine.threads import Threads, Whole
from pipeline.records import F32, Examples, FieldLayout, Unique
from pipeline.serving.caught_up import Known, RowReader
from pipeline.serving.features import Features
from pipeline.serving.scored_files import score_columns, score_fields
from pipeline.stages.dedup import Workspace, dedup
from pipeline.storage.layout import RowLayout
from pipeline.training.spread import Items, Lists, Spread
from pipeline.workflow import Data, Workflow

DensePart = Callable[[F32, F32, F32, Lists | None], F32]
"""Forward pass of a trained dense model: function of numbers [B, X], embeddings [B, F, D], first-order weights [B, F]
and lists (None without sequences) that returns logits, [B] or [B, T]."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of a batch, with its examples and counts of unknown keys."""

    scores_BT: F32
    examples: Examples
    unknown_F: np.ndarray = field(repr=False)
    """[F + L] number of values whose key has no row, for each field and item list."""


class Predictor:
    """Scorer of tables, in batches of the size that the model was evaluated with. Thread-safe: each call has its own
    buffers, which later calls reuse."""

    def __init__(
        self, workflow: Workflow, features: Features, layout: RowLayout, rows: Callable[[], RowReader],
        dense: Callable[[], DensePart], bad_values: BadValues = "clip",
    ) -> None:  # fmt: skip
        """`rows`: called for each batch; may open the rows at the first call. `dense`: makes a forward pass with its
        own buffers. Raises ValueError if `bad_values` is not a known rule."""
        check_rule(bad_values)
        self.bad_values, self.tasks = bad_values, workflow.data.all_tasks
        self._workflow, self.features, self._row, self._rows, self._dense = workflow, features, layout, rows, dense
        self._fields = layout_of(workflow.data, features.kinds)
        self._reads = features.reads()
        self._idle: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        self._idle_judges: queue.SimpleQueue[_Lane] = queue.SimpleQueue()

    def predict(self, data: object) -> pa.Table:
        """Return the columns of `score_fields`, float32, for each row of `data`, which `as_table` must accept. Numbers
        outside the domain of their column cause a warning, attributed to the caller's caller. Raises ValueError, with
        the column, if a column is missing or does not match the model."""
        table, outside = as_table(data, self._reads), Outside(self.bad_values)
        scores = [scored.scores_BT for scored in self.batches(table, outside)]
        warn_of(outside, 4)
        scores_NT = np.concatenate([np.empty((0, len(self.tasks)), np.float32), *scores])
        return pa.Table.from_arrays(score_columns(scores_NT, self.tasks), score_fields(self.tasks))

    def batches(
        self, table: pa.Table, outside: Outside, labelled: bool = False, name: str = "the table"
    ) -> Iterator[Scored]:
        """Yield the scores of a table, batch by batch; NaN for a row without a score. `outside`: counts bad numbers.
        `labelled`: also read labels, weight and group, which are valid until the next batch. `name`: name of the table
        in messages."""
        first = 0
        with self._lane(labelled) as lane:
            for examples in lane.reader.batches(table, self._workflow.schedule.batch_size, outside, name):
                scored = lane.score(examples, self._rows())
                scored.scores_BT[outside.take_rows() - first] = np.nan
                yield scored
                first += examples.block.num_examples

    @contextmanager
    def _lane(self, labelled: bool) -> Iterator[_Lane]:
        idle = self._idle_judges if labelled else self._idle
        try:
            lane = idle.get_nowait()
        except queue.Empty:
            lane = _Lane(self._workflow, self.features, self._row, self._fields, self._dense(), labelled)
        try:
            yield lane
        finally:
            idle.put(lane)


def as_table(data: object, names: Collection[str]) -> pa.Table:
    """The columns `names`, as far as they are there, of an object with `__arrow_c_stream__`, a lazy frame of polars
    (which is collected), a dict of columns, or a list of rows, where an absent key is null. Other columns are not
    converted. Raises ValueError if it is none of these."""
    parts = [name.split(".") for name in names]
    wanted = {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}
    is_frame = type(data).__module__.partition(".")[0] in ("pandas", "polars")
    try:
        given: Any = data.collect() if is_frame and hasattr(data, "collect") else data
        if is_frame and hasattr(given, "columns"):
            chosen = [n for n, name in enumerate(given.columns) if str(name) in wanted]
            given = _of_frame(getattr(given, "iloc", given)[:, chosen])
        if isinstance(given, list) and all(isinstance(row, dict) for row in given):
            given = _of_rows(given, names)
        if isinstance(given, dict):
            return pa.table(
                {name: array_of(f"column {name!r}", values) for name, values in given.items() if name in wanted}
            )
        table = given if isinstance(given, pa.Table) else pa.table(given)
        return table.select([n for n, name in enumerate(table.column_names) if name in wanted])
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise ValueError(
            f"the data, of type {type(data).__name__}, are not a table: {error}; give a table of pyarrow, pandas or "
            "polars, a dict of columns, or a list of rows, each a dict (`pipeline score` reads files)"
        ) from error


def _of_frame(frame: Any) -> Any:
    """Table of a frame; a dict of columns if a column has Python integers from 2^63 on."""
    try:
        return pa.table(frame)
    except OverflowError:
        return {name: frame[name] for name in frame.columns}


def _of_rows(rows: Sequence[dict[str, Any]], names: Collection[str]) -> dict[str, list[Any]]:
    """Columns of rows. Raises ValueError if no row has any of the names, or if one differs from a key by case only."""
    keys = {key for row in rows for key in row}
    absent = {name.casefold(): name for name in names if keys.isdisjoint((name, name.partition(".")[0]))}
    if rows and len(absent) == len(names):
        raise ValueError(f"no row has any of {', '.join(names)}")
    if other := next((key for key in keys.difference(names) if str(key).casefold() in absent), None):
        raise ValueError(f"no row has {absent[other.casefold()]!r}, but there is {other!r}; rename it")
    return {name: [_value(row, name) for row in rows] for name in names}


def _value(row: Any, name: str) -> Any:
    """Value of a column; a name with dots may be that of a key in a dict within the row."""
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    return _value(row[head], rest) if dot and isinstance(row.get(head), dict) else None


def array_of(what: str, values: Any) -> pa.Array | pa.ChunkedArray:
    """Arrow array of values. Integers from 2^63 on are unsigned. Raises ValueError, which begins with `what`, if they
    have no common type."""
    try:
        return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        for kind in (pa.uint64(), pa.list_(pa.uint64())) if isinstance(error, OverflowError) else ():
            with suppress(TypeError, ValueError, OverflowError, pa.ArrowException):
                return pa.array(values, kind)
        raise ValueError(f"{what}: {error}") from error


def warn_of(outside: Outside, stacklevel: int) -> None:
    """Warn of each column with bad numbers. `stacklevel`: passed to `warnings.warn`."""
    for line in outside.lines():
        warnings.warn(line, stacklevel=stacklevel)


class _Lane:
    """Buffers for one call. Not thread-safe."""

    def __init__(
        self, workflow: Workflow, features: Features, row: RowLayout, fields: FieldLayout, dense: DensePart,
        labelled: bool,
    ) -> None:  # fmt: skip
        group = workflow.metrics.group if labelled else None
        data: Data = workflow.data
        known = features.description
        columns = [c for c in columns_of(data, group, known) if labelled or c.has_rows or c.number or c.sequence]
        self.reader = TableReader(columns, features.kinds, fields, data, known)
        self._fields, self._row, self._dense = fields, row, dense
        self._work = Workspace(fields, Threads(1, "dedup"))
        self._size = workflow.schedule.batch_size
        self._spread, self._items = Spread(fields, row, 0, Whole(), RAM), Items(fields, row.embedding_dim, Whole(), RAM)
        self._weights_UC: F32 = np.empty((0, row.num_weights), np.float32)
        self._num_labels = len(features.labels)

    def score(self, examples: Examples, rows: RowReader) -> Scored:
        unique = dedup(examples, self._work)
        assert isinstance(unique, Unique)
        num_keys, size = len(unique.keys_U), examples.block.num_examples
        if len(self._weights_UC) < num_keys:
            self._weights_UC = np.empty((num_keys + num_keys // 2, self._row.num_weights), np.float32)
        if len(self._spread.embeddings_BFD) < size:
            self._spread = Spread(self._fields, self._row, size, Whole(), RAM)
        weights_UC = self._weights_UC[:num_keys]
        known_U = rows.weights(unique.keys_U, weights_UC)
        (index,) = unique.batches
        weights_PC = np.ascontiguousarray(weights_UC[index.unique_P])
        self._spread.spread(weights_PC, index, examples.bags[0])
        embeddings_BFD, first_BF = self._spread.embeddings_BFD[:size], self._spread.first_BF[:size]
        lists = self._items.look_up(weights_PC, index, examples, 0) if examples.lists else None
        scores_B = self._dense(examples.numbers_NX, embeddings_BFD, first_BF, lists)
        unknown_F = self._unknown(~known_U[index.unique_P][index.inverse_V], examples)
        return Scored(scores_B.reshape(size, self._num_labels), examples, unknown_F)

    def _unknown(self, unknown_V: Known, examples: Examples) -> np.ndarray:
        size, singles = examples.block.num_examples, len(self._fields.single_S)
        num_fields, num_lists = self._fields.num_fields, self._fields.num_lists
        counts_F = np.zeros(num_fields + num_lists, np.int64)
        counts_F[list(self._fields.single_S)] = unknown_V[: singles * size].reshape(singles, size).sum(axis=1)
        of_bags = [*self._fields.multi_M, *range(num_fields, num_fields + num_lists)]
        for number, starts in zip(of_bags, examples.bags[0], strict=True):
            counts_F[number] = unknown_V[starts[0] : starts[-1]].sum()
        return counts_F
