"""This package under the protocol of `benchmarks.nightly`: one run over all spans, and shuffled epochs."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from benchmarks.nightly.logs import Log
from pipeline.api import Adam, Category, Data, DenseAdam, Model, Optimizer, Schedule, Storage, Workflow
from pipeline.driver.session import open_session, plan_session
from pipeline.metrics.rates import probability
from pipeline.monitor.observer import Observer
from pipeline.records import F32, F64, StageResult
from pipeline.worker.worker import Worker


def write_spans(spans: list[pa.Table], folder: Path) -> list[Path]:
    """Write one Parquet file for each span."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"span-{number:02}.parquet" for number in range(len(spans))]
    for table, file in zip(spans, files, strict=True):
        pq.write_table(table, file)
    return files


def workflow_of(log: Log, folder: Path, settings: dict[str, Any], train: list[Path], **data: Any) -> Workflow:
    """Workflow of a log. `settings`: values of fields by their paths; `data`: fields of Data."""
    shown = Workflow(
        name=log.name,
        data=Data(
            root=folder, train=tuple(file.name for file in train), labels=(log.label,),
            categories=tuple(Category(name=name, pooling="mean") for name in log.fields), **data,
        ),
        model=Model(kind="FM", embedding_dim=8),
        optimizer=Optimizer(rows=Adam(lr=1e-2), dense=DenseAdam(lr=1e-3)),
        storage=Storage(device="64 MiB", host="8 MiB", disk="1 GiB", read="64 MiB", map="32 MiB"),
        schedule=Schedule(batch_size=32, threads=1),
        device="cpu",
    )  # fmt: skip
    return shown.with_settings(settings)


class _Scores(Observer):
    """Collector of the logits of each span, as scored by the run before it trains on the span."""

    def __init__(self) -> None:
        self.of_spans: dict[int, list[F32]] = {}

    def on_stage(self, done: StageResult) -> None:
        if done.trained and done.trained.scores_NT is not None and done.trained.block.span is not None:
            self.of_spans.setdefault(done.trained.block.span, []).append(done.trained.scores_NT[:, 0])


def in_time_order(log: Log, files: list[Path], settings: dict[str, Any]) -> list[F64]:
    """Scores of each span except the first by the model of the earlier spans, from one run over all spans."""
    workflow, found = workflow_of(log, files[0].parent, settings, files, span="file"), _Scores()
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        session = plan_session(workflow, Path(folder) / "run", True, None, None, lambda line: None)
        with open_session(session, fresh=False) as driver:
            driver.crew.each(_return_scores)
            driver.runner.observers += (found,)
            assert driver.run()
    return [probability(np.concatenate(logits)) for _, logits in sorted(found.of_spans.items())][1:]


def _return_scores(worker: Worker) -> None:
    """Make the worker return the logits of each example instead of metrics."""
    worker.tiers.learner.block_metrics.returns_scores = True


def in_epochs(log: Log, files: list[Path], settings: dict[str, Any], epochs: int, first: int) -> list[F64]:
    """Scores of each span from `first` on by a model trained for shuffled epochs on all earlier spans."""
    scores = []
    for number in range(first, len(files)):
        workflow = workflow_of(log, files[0].parent, settings | {"schedule.epochs": epochs}, files[:number])
        with (
            TemporaryDirectory() as folder,
            redirect_stderr(StringIO()),
            pipeline.train(workflow, Path(folder) / "run", serial=True, verbose=False) as run,
        ):
            scored = run.predict(pq.read_table(files[number]))
        scores.append(scored.column(f"{log.label}.probability").to_numpy().astype(float))
    return scores
