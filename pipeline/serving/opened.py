"""A trained run opened for reading in Python: scores, metrics and rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pipeline.commits.flush import live_at
from pipeline.commits.manifest import Commits, Manifest
from pipeline.commits.reading import HeldCommit
from pipeline.commits.reopen import read_commit
from pipeline.data.outside import BadValues, Outside, check_rule
from pipeline.kernels.key_map import UNKNOWN
from pipeline.messages.sizes import bytes_of_memory, format_size_down, format_size_up
from pipeline.metrics.evaluation import Evaluation
from pipeline.monitor.runs import is_finished, result_of
from pipeline.records import F32, U32, U64
from pipeline.serving.caught_up import CaughtUp, Known
from pipeline.serving.commit import OpenedCommit, open_commit
from pipeline.serving.evaluate import add_scored
from pipeline.serving.open_servable import keys_of_values, vectors
from pipeline.serving.predictor import Predictor, as_table, warn_of
from pipeline.serving.torch_model import TorchDense, model_of
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.key_map import bytes_for
from pipeline.storage.layout import STATE, RowLayout
from pipeline.storage.tier import check_keys, widened
from pipeline.training.dense_state import merge_dense
from pipeline.workflow import Workflow

MEMORY = "1 GiB"


def open_run(
    run_dir: str | Path, commit: str | int | None = None, memory: str | int = MEMORY,
    workflow: str | Path | Workflow | None = None, bad_values: BadValues = "clip",
) -> OpenRun:  # fmt: skip
    """Open a commit of a run for reading. Training may continue meanwhile, and keeps the commit.

    `commit`: "best", "last", or a number (default: "best" if it exists, else "last"). `memory`: maximum size of the key
    map, which is built when the first row is needed. `workflow`: the workflow or its file, needed if it defines the
    model class. `bad_values`: what happens to a row with a number outside the domain of its column: "clip" scores it
    with the nearest number inside, "null" gives it no score, "refuse" raises ValueError for all rows.

    Raises ValueError if an argument does not match the run, and Damaged if the commit is damaged.
    """
    check_rule(bad_values)
    given = Path(workflow) if isinstance(workflow, str) else workflow
    return OpenRun(open_commit(Path(run_dir), commit, given), bytes_of_memory(memory), bad_values)


class OpenRun:
    """An open commit of a run. Thread-safe. Also a context manager that closes it."""

    def __init__(self, opened: OpenedCommit, memory: int, bad_values: BadValues = "clip") -> None:
        self._opened, self._memory, self._lock = opened, memory, threading.Lock()
        self._rows: CommitRows | None = None
        self.commit: int = opened.held.number
        """Number of the commit."""
        dense = lambda: TorchDense(opened.workflow, self.model)  # noqa: E731
        self._predictor = Predictor(opened.workflow, opened.features, opened.layout, self._open_rows, dense, bad_values)

    def __repr__(self) -> str:
        opened = self._opened
        model, state = opened.workflow.model.kind.__name__, "finished" if self.finished else "not finished"
        return (
            f"<OpenRun {opened.held.run_dir}: commit {self.commit} of {opened.workflow.name} ({model}), "
            f"step {opened.step:,}, {opened.manifest.live_rows:,} rows, {state}>"
        )

    @property
    def model(self) -> torch.nn.Module:
        """Dense model in evaluation mode: forward(numbers [B, X], embeddings [B, F, D], first-order [B, F])."""
        with self._lock:
            return self._model

    # Since Python 3.12, cached properties have no lock. These are read while `_lock` is held.
    @cached_property
    def _saved(self) -> dict[str, Any]:
        return merge_dense(self._opened.held.load_replicas())

    @cached_property
    def _model(self) -> torch.nn.Module:
        return model_of(self._opened.workflow, self._saved)

    def _open_rows(self) -> CommitRows:
        with self._lock:
            if self._rows is None:
                (opened := self._opened).held.check()
                caught_up = CaughtUp(
                    opened.workflow.optimizer, opened.layout, opened.features, self._saved, opened.step
                )
                direct = opened.workflow.storage.direct
                self._rows = CommitRows(opened.held, opened.speed, caught_up, self._memory, direct)
            return self._rows

    def predict(self, data: object) -> pa.Table:
        """Score `data`: any object with `__arrow_c_stream__` (a table of pyarrow, pandas or polars), a dict of columns,
        or a list of rows. Returns the columns LABEL.logit and LABEL.probability (LABEL.value for a numeric label),
        float32; null for a row without a score. Warns of bad numbers (see `open_run`). Raises ValueError, with the
        column, if a column does not match the model."""
        return self._predictor.predict(data)

    def evaluate(self, data: object) -> dict[str, float]:
        """Return the metrics of `data`, which must have the labels; they are those that an evaluation of the run
        reports. Rows without a score (see `open_run`) are omitted."""
        workflow, outside = self._opened.workflow, Outside(self._predictor.bad_values)
        evaluation = Evaluation.of(workflow)
        truths = (*workflow.data.labels, workflow.data.weight, workflow.metrics.group)
        table = as_table(data, self._opened.features.reads(name for name in truths if name))
        for scored in self._predictor.batches(table, outside, labelled=True):
            truth = scored.examples
            add_scored(evaluation, (scored.scores_BT, truth.labels_NT, truth.weights_N, truth.groups_N))
        warn_of(outside, 3)
        return evaluation.result()

    def rows(self, column: str, values: Any) -> pa.Table:
        """Look up the rows of values, or of one value, of a categorical column. Returns a row for each: `value`, `key`,
        `known` (false: it has no row, and this is its first row), `weights` as an evaluation of this commit reads them
        (the `embedding_dim` values of the embedding, then the first-order weight if the model has one), the optimizer
        state of each weight, and `last_step` and `count` as stored."""
        array, keys_N = keys_of_values(self._opened.features, self._opened.workflow.data, column, values)
        unique_U, inverse_N = np.unique(keys_N, return_inverse=True)
        reader = self._open_rows()
        stored_UW, known_U = reader.stored(unique_U)
        weights_UC = np.empty((len(unique_U), self._opened.layout.num_weights), np.float32)
        reader.weights(unique_U, weights_UC)
        layout = self._opened.layout.wide
        rows_NX = widened(self._opened.layout, stored_UW)[inverse_N]
        described = layout.describe()
        state = {name: described[name] for name in STATE[layout.optimizer]}
        return pa.table({
            "value": array,
            "key": keys_N,
            "known": known_U[inverse_N],
            "weights": vectors(weights_UC[inverse_N]),
            **{name: vectors(rows_NX.view(np.float32)[:, begin:end]) for name, (begin, end) in state.items()},
            "last_step": rows_NX[:, described["last_step"]],
            "count": rows_NX[:, described["count"]],
        })  # fmt: skip

    def table_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of all tables, each once, sorted neither by key nor by table: `key` (uint64) and `weights`, as
        in `rows`. Takes the memory of the key map (see `open_run`) and of one batch, a chunk of the log."""
        for keys_N, weights_NC in self._open_rows().chunks():
            yield pa.record_batch({"key": keys_N, "weights": vectors(weights_NC)})

    @property
    def metrics(self) -> pa.Table:
        """Metrics of each evaluation up to the commit, one row each; commit="last" has all. A later test evaluation is
        in `result`."""
        epochs = self._opened.state.epochs
        names = dict.fromkeys(name for epoch in epochs for name in epoch)
        return pa.table({name: [epoch.get(name) for epoch in epochs] for name in names})

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of the run's `result.json`, such as the metrics of the test split and the fingerprint; None if it
        does not exist yet."""
        return result_of(self._opened.held.run_dir)

    @property
    def finished(self) -> bool:
        """True if training is finished, False if it was interrupted or is still running."""
        return is_finished(self._opened.held.run_dir)

    @property
    def commits(self) -> pa.Table:
        """All commits of the run: number, name, position (epoch, split, batch, and span, all from 0; span is null
        without spans), number of rows."""
        manifests = _all_commits(self._opened.held.run_dir)
        # A later commit may take over the name of an earlier one, whose manifest does not change.
        bearers = {manifest.name: manifest.number for manifest in manifests}
        at = [manifest.state["position"] for manifest in manifests]
        return pa.table({
            "number": pa.array([m.number for m in manifests], pa.int64()),
            "name": pa.array([m.name if bearers[m.name] == m.number else None for m in manifests], pa.string()),
            **{what: [position.get(what) for position in at] for what in ("epoch", "split", "batch", "span")},
            "rows": pa.array([m.live_rows for m in manifests], pa.int64()),
        })  # fmt: skip

    def close(self) -> None:
        """Release the commit. May be called twice."""
        with self._lock:
            if self._rows:
                self._rows.close()
        self._opened.held.close()

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _all_commits(run_dir: Path) -> list[Manifest]:
    """All commits of a run, except those that training deletes meanwhile."""
    commits = Commits(run_dir, Files(), 1)
    found = []
    for number in commits.numbers():
        try:
            found.append(Manifest.of(commits.manifest_file(number)))
        except FileNotFoundError:
            continue
    return found


class CommitRows:
    """Rows of a commit. The constructor builds the key map from the key column of the log."""

    def __init__(self, held: HeldCommit, speed: DiskSpeed, caught_up: CaughtUp, memory: int, direct: bool) -> None:
        """`memory`: maximum bytes of the key map. Raises ValueError, with the numbers, if the map needs more, and
        Damaged if the commit is damaged."""
        manifest = held.manifest
        if (needed := bytes_for(manifest.live_rows)) > memory:
            raise ValueError(
                f"commit {manifest.number} has {manifest.live_rows:,} keys, whose map takes {format_size_up(needed)}, "
                f'and memory is {format_size_down(memory)}; give memory="{format_size_up(needed)}", or read rows '
                "without a map: `pipeline export`, then pipeline.open_servable"
            )
        self._held, self._caught_up, self._layout = held, caught_up, RowLayout.of(manifest.row)
        with held.explaining():
            self._places, self._log = read_commit(held.run_dir, manifest, speed, direct, memory)
        self._lock = threading.Lock()

    def stored(self, keys_U: U64) -> tuple[U32, Known]:
        """Rows [U, W] of distinct keys as stored in the commit, not caught up, and whether each key has a row. A key
        without a row gets its first row."""
        places_U = self._places.map.find(keys_U)
        known_U = places_U != UNKNOWN
        rows_UW = self._caught_up.first_rows(keys_U)
        if known_U.any():
            at_N, found_NW = self._places.chunks.positions_of(places_U[known_U]), rows_UW[known_U]
            # The log's reader serves one call at a time.
            with self._held.explaining(), self._lock:
                self._held.check()
                self._log.gather(at_N, found_NW)
                check_keys(self._log, at_N, found_NW, keys_U[known_U])
                # If the chunk was deleted meanwhile, another with later rows of the same keys may have replaced it.
                self._held.check()
            rows_UW[known_U] = found_NW
        return rows_UW, known_U

    def weights(self, keys_U: U64, weights_UC: F32) -> Known:
        rows_UW, known_U = self.stored(keys_U)
        weights_UC[:] = self._caught_up.catch_up(rows_UW)
        return known_U

    def chunks(self) -> Iterator[tuple[U64, F32]]:
        """Yield the keys [N] and the weights [N, C] of all rows, a chunk of the log at a time."""
        chunk_RW: U32 = np.empty((self._log.chunk_rows, self._layout.num_words), np.uint32)
        for chunk in self._places.chunks.live().tolist():
            with self._held.explaining(), self._lock:
                self._held.check()
                at_N, keys_N = live_at(self._places, self._log, chunk)
                rows_NW = chunk_RW[: len(at_N)]
                self._log.gather(at_N, rows_NW)
                check_keys(self._log, at_N, rows_NW, keys_N)
                self._held.check()
            yield keys_N, self._caught_up.catch_up(rows_NW).copy()

    def close(self) -> None:
        """Release the commit, and close the log's files when no call reads them."""
        with self._lock:
            self._held.close()
            self._log.close()
