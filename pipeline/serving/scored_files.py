"""Output files of scoring: one for each input file, with the same rows in the same order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.decode import fill_floats
from pipeline.data.files import InputColumn, plain, with_derived
from pipeline.data.identity import stamp_of
from pipeline.data.outside import Outside
from pipeline.files.description import Description
from pipeline.files.find import DataFile, check_once, find
from pipeline.files.flat import FlatFile, open_file, unite
from pipeline.files.stores import Stamp, is_remote
from pipeline.files.types import converted, has_no_values, value_of
from pipeline.metrics.rates import probability
from pipeline.records import F32, I64
from pipeline.storage.durable import replacing
from pipeline.storage.files import Files
from pipeline.workflow import Data, Task

WAITING = 8
"""Maximum number of blocks with scores waiting to be written."""

SCORED_GROUP = 1 << 17
"""Number of rows per row group of a scored file, and per read."""


@dataclass(frozen=True, slots=True)
class ScoredFile:
    source: DataFile
    out: Path
    num_rows: int
    stamp: Stamp
    """Stamp of the source at the time of listing (see `stamp_of`)."""


def list_files(sources: Sequence[str], out: Path, data: Data, description: Description) -> tuple[ScoredFile, ...]:
    """Input files, in the order of the arguments, each with its output file. The output has the same path relative to
    the named folder or to the fixed part of the named pattern; for a named file, it has the same name. If two outputs
    would collide, all output paths are relative to the common folder of all inputs. `data`: has the features.

    Raises ValueError if an argument names no Parquet file, a file is named twice, outputs collide and the inputs have
    no common folder, or an input is below the output folder.
    """
    listing = find(sources, form="Parquet", types=description.types)
    check_once({"": listing.files})
    for file in listing.files:
        if not is_remote(file.place) and Path(file.place).resolve().is_relative_to(out.resolve()):
            raise ValueError(f"--out {out} holds {file}, which is to be scored; name another folder")
    names = [file.below for file in listing.files]
    if len(set(names)) < len(names):
        # commonprefix compares characters, so the text after the last slash may be part of a name.
        together = commonprefix([file.place for file in listing.files]).rpartition("/")[0]  # noqa: RUF071
        if not together or together.endswith(":/"):
            one, other = next((a, b) for a in listing.files for b in listing.files if a != b and a.below == b.below)
            raise ValueError(f"{one} and {other} would both be scored to {out / one.below}; score them separately")
        names = [file.place.removeprefix(f"{together}/") for file in listing.files]
    return tuple(
        ScoredFile(file, out / name, _num_rows(file), stamp_of(file))
        for name, file in zip(names, with_derived(listing.files, data, description), strict=True)
    )


def _num_rows(path: DataFile) -> int:
    with open_file(path) as file:
        return int(file.metadata.num_rows)


def readable_columns(files: Sequence[ScoredFile], with_values: bool = False) -> set[str]:
    """Names of the columns that all input files have. `with_values`: only flat columns, excluding those whose type
    allows only null."""
    names: list[set[str]] = []
    for file in files:
        with open_file(file.source, is_flat=with_values) as source:
            schema = source.schema_arrow
        names.append({field.name for field in schema if not (with_values and has_no_values(field.type))})
    return set.intersection(*names)


def types_of(files: Sequence[ScoredFile], keep: Sequence[str]) -> dict[str, pa.DataType | None]:
    """Type of each of these columns in all outputs; None, if no type holds the values of all, for that of each file."""
    schemas: dict[DataFile, pa.Schema] = {}
    for file in files:
        with open_file(file.source, is_flat=False) as source:
            schemas[file.source] = pa.schema([source.schema_arrow.field(name) for name in keep])
    return {column.name: None if column.conflict else column.type for column in unite(schemas)}


def output_fields(tasks: Sequence[Task]) -> list[str]:
    """Column names of the model's outputs: the logit of a binary label, or the value of a numeric one. `tasks`: those
    of all labels."""
    return [f"{task.label}.{'logit' if task.is_binary else 'value'}" for task in tasks]


def score_fields(tasks: Sequence[Task]) -> list[str]:
    """Names of the score columns: logit and probability of a binary label, or the value of a numeric one."""
    outputs = zip(tasks, output_fields(tasks), strict=True)
    return [name for task, output in outputs for name in (output, f"{task.label}.probability")[: 1 + task.is_binary]]


def score_columns(scores_NT: F32, tasks: Sequence[Task]) -> list[pa.Array]:
    """Columns of `score_fields`, float32, from these outputs; NaN becomes null."""
    chances_NT = probability(scores_NT).astype(np.float32)
    columns = [of_NT[:, t] for t, task in enumerate(tasks) for of_NT in (scores_NT, chances_NT)[: 1 + task.is_binary]]
    return [pa.array(np.ascontiguousarray(values), pa.float32(), from_pandas=True) for values in columns]


class ScoreWriter:
    """Writer of the output files, one after another, in its own thread. Also a context manager.

    A file appears under its final name only when it is complete and durable. Its bytes depend only on the input, the
    logits and `metadata`.
    """

    def __init__(
        self, files: Sequence[ScoredFile], tasks: Sequence[Task], keep: Mapping[str, pa.DataType | None],
        metadata: Mapping[str, str], numbers: Sequence[InputColumn], outside: Outside, unfinished: Path,
    ) -> None:  # fmt: skip
        """`keep`: input columns to copy, with their `types_of`; `metadata`: metadata of each file's schema; `numbers`:
        number columns, whose bad values `outside` counts; `unfinished`: folder of the file that is being written."""
        self._numbers, self._outside, self._unfinished = numbers, outside, unfinished
        self._files, self._keep, self._metadata = files, dict(keep), metadata
        self._score_fields, self._tasks = score_fields(tasks), tasks
        self._queue: queue.Queue[F32 | None] = queue.Queue(WAITING)
        self._rest: F32 = np.empty((0, 0), np.float32)
        """Logits taken from the queue that belong to later rows."""
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="write scores", daemon=True)

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self._files)

    def add(self, scores_NT: F32) -> None:
        """Queue the logits [N, T] of the next N rows for writing. Raises the exception of an earlier write, if any."""
        if self._error:
            raise self._error
        self._queue.put(scores_NT)

    def __enter__(self) -> ScoreWriter:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """Wait until everything is written. Raises the exception of a write, unless another exception is
        propagating."""
        self._queue.put(None)
        self._thread.join()
        if kind is None and self._error:
            raise self._error

    def _run(self) -> None:
        try:
            for file in self._files:
                if not self._write(file):
                    return
        except Exception as error:
            self._error = error
        # Keep draining the queue, so that `add` never blocks.
        while self._queue.get() is not None:
            pass

    def _write(self, file: ScoredFile) -> bool:
        """Write one file. Returns False, and writes nothing, if the scores end before the file's last row. Raises
        ValueError if the input file has changed."""
        Files().make_folder(file.out.parent)
        with open_file(file.source) as source, open_file(file.source, is_flat=False) as raw:
            kept = ColumnReader(file.source, raw, [*self._keep]) if self._keep else None
            bad = BadNumbers(source, self._numbers, self._outside, str(file.source))
            types = {name: kind or raw.schema_arrow.field(name).type for name, kind in self._keep.items()}
            fields = [raw.schema_arrow.field(name).with_type(kind) for name, kind in types.items()]
            fields += [pa.field(name, pa.float32()) for name in self._score_fields]
            schema = pa.schema(fields, dict(self._metadata))
            try:
                with replacing(file.out, self._unfinished) as out, pq.ParquetWriter(out, schema) as writer:
                    left = file.num_rows
                    while left:
                        scores_NT = self._take(min(SCORED_GROUP, left))
                        scores_NT[bad.take(len(scores_NT))] = np.nan
                        taken = zip(types.items(), kept.take(len(scores_NT)) if kept else (), strict=True)
                        arrays = [converted(column, kind, f"{file.source}: {n!r}") for (n, kind), column in taken]
                        arrays += score_columns(scores_NT, self._tasks)
                        writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=SCORED_GROUP)
                        left -= len(scores_NT)
                    if stamp_of(file.source) != file.stamp:
                        raise ValueError(f"{file.source} has changed since the scoring began; score it again")
            except _Ended:
                return False
        return True

    def _take(self, num_rows: int) -> F32:
        """Next `num_rows` rows of logits. Raises _Ended if there are fewer."""
        pieces, missing = [], num_rows
        while missing:
            if not len(self._rest):
                got = self._queue.get()
                if got is None:
                    self._queue.put(None)
                    raise _Ended
                self._rest = got
            pieces.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(pieces[-1])
        return np.concatenate(pieces) if pieces else np.empty((0, len(self._tasks)), np.float32)


class _Ended(Exception):
    """Raised if scoring ends before the file's last row."""


class ColumnReader:
    """Reader of some columns of a Parquet file, from front to back."""

    def __init__(self, path: DataFile | Path | str, file: pq.ParquetFile, columns: Sequence[str]) -> None:
        self._path, self._columns = path, list(columns)
        self._batches: Iterator[pa.RecordBatch] = file.iter_batches(
            SCORED_GROUP, columns=self._columns, use_threads=False
        )
        self._rest: list[pa.RecordBatch] = []

    def take(self, num_rows: int) -> list[pa.ChunkedArray]:
        """Next `num_rows` rows, column by column."""
        taken: list[pa.RecordBatch] = []
        while num_rows:
            batch = self._rest.pop() if self._rest else next(self._batches, None)
            if batch is None:
                raise ValueError(
                    f"{self._path} has fewer rows than when the scoring began, {num_rows:,} at least; score it again"
                )
            if len(batch) > num_rows:
                self._rest.append(batch.slice(num_rows))
                batch = batch.slice(0, num_rows)
            taken.append(batch)
            num_rows -= len(batch)
        return list(pa.Table.from_batches(taken).select(self._columns).columns)


class BadNumbers:
    """Reader of the number columns that may contain bad numbers, according to the file's statistics. The scoring stages
    cannot count: they read blocks in several processes, and some blocks twice."""

    def __init__(self, file: FlatFile, numbers: Sequence[InputColumn], outside: Outside, name: str) -> None:
        """`name`: name of the file, for messages."""
        self._columns, self._outside, self._name = [c for c in numbers if may_have(file, c)], outside, name
        self._reader = ColumnReader(name, file, [column.name for column in self._columns])
        self._row = 0

    def take(self, num_rows: int) -> I64:
        """Rows without a score among the next `num_rows`, relative to the first of them."""
        read = self._reader.take(num_rows) if self._columns else []
        for column, chunks in zip(self._columns, read, strict=True):
            row = self._row
            for array in plain(chunks, column, None, self._name).chunks:
                out_N: F32 = np.empty(len(array), np.float32)
                fill_floats(array, column, self._name, row, out_N, self._outside)
                row += len(array)
        rows = self._outside.take_rows() - self._row
        self._row += num_rows
        return rows


def may_have(file: FlatFile, column: InputColumn) -> bool:
    """False if the minimum and maximum of each row group, and null, are in the domain of the column."""
    place = file.leaf(column.name)
    if column.name not in file.schema_arrow.names:
        return False
    found = value_of(file.schema_arrow.field(column.name).type)
    if place is None or has_no_values(found):
        return place is None
    of_groups = file.statistics(column.name)
    ends = [end for s in of_groups if s and s.has_min_max for end in (s.min, s.max)]
    # Arrow returns bytes for 16-bit floats.
    if len(ends) < 2 * len(of_groups) or not all(isinstance(end, int | float) for end in ends):
        return True
    trial = Outside("clip")
    out: F32 = np.empty(len(ends) + 1, np.float32)
    fill_floats(pa.array([*ends, None], found), column, "", 0, out, trial)
    return bool(trial.counts) or any(end != end for end in ends)
