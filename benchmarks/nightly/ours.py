"""This package under the protocol of `benchmarks.nightly`: one run over all spans, and shuffled epochs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from benchmarks.nightly.logs import Log
from pipeline.api import Adam, Category, Data, DenseAdam, Model, Optimizer, Schedule, Storage, Workflow
from pipeline.driver.session import open_session, plan_session
from pipeline.metrics.rates import F64
from pipeline.monitor.observer import Observer
from pipeline.records import StageResult
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


def score_of(log: Log, run_dir: Path, file: Path) -> F64:
    """[N] probabilities of the examples of a file, by the last commit of a run."""
    out = run_dir.with_name("scored")
    shutil.rmtree(out, ignore_errors=True)
    pipeline.score(run_dir, str(file), out, commit="last")
    found: F64 = pq.read_table(out)[f"{log.label}.probability"].to_numpy()
    return found


class _Scores(Observer):
    """Collector of the logits of each span, as the run scores it before it trains on it."""

    def __init__(self) -> None:
        self.of_spans: dict[int, list[F64]] = {}

    def on_stage(self, done: StageResult) -> None:
        if done.trained and done.trained.scores_NT is not None and done.trained.block.span is not None:
            self.of_spans.setdefault(done.trained.block.span, []).append(done.trained.scores_NT[:, 0].astype(float))


def in_time_order(log: Log, files: list[Path], settings: dict[str, Any], folder: Path) -> list[F64]:
    """Scores of each span but the first by the model of the spans before it, of one run over all of them."""
    workflow = workflow_of(log, files[0].parent, settings, files, span="file")
    session = plan_session(workflow, folder / "in_order", True, None, None, lambda line: None, fresh=True)
    found = _Scores()
    with open_session(session, True) as driver:
        driver.crew.each(_return_scores)
        driver.runner.observers += (found,)
        assert driver.run()
    return [1 / (1 + np.exp(-np.concatenate(logits))) for _, logits in sorted(found.of_spans.items())][1:]


def _return_scores(worker: Worker) -> None:
    """Make the worker return the logits of each example in place of their metrics."""
    worker.tiers.learner.block_metrics.returns_scores = True


def in_epochs(
    log: Log, files: list[Path], settings: dict[str, Any], epochs: int, first: int, folder: Path
) -> list[F64]:
    """Scores of each span from `first` on by a model that was trained for shuffled epochs on all spans before it."""
    scores = []
    for number in range(first, len(files)):
        run_dir = folder / "epochs"
        shutil.rmtree(run_dir, ignore_errors=True)
        workflow = workflow_of(log, files[0].parent, settings | {"schedule.epochs": epochs}, files[:number])
        pipeline.train(workflow, run_dir, serial=True, verbose=False).close()
        scores.append(score_of(log, run_dir, files[number]))
    return scores
