"""Observer that logs a run to MLflow or TensorBoard while it trains. The run waits for neither, nor fails with them."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal

from pipeline.monitor.command import check_extra
from pipeline.monitor.history import History
from pipeline.monitor.observer import CommitFacts, Observer, Outcome
from pipeline.monitor.runs import flat_settings, result_of
from pipeline.records import StageResult

SECONDS, END_SECONDS = 5.0, 60.0
"""Minimum time between two points of speed and loss; maximum time for which the end of a run waits for the thread."""
Log = tuple[Callable[[Mapping[str, float], int], Any], Callable[[Outcome, Mapping[str, Any]], None]]


class Tracker(Observer):
    """Observer of the run in `run_dir`. The step of a point is the number of training examples, over all sessions."""

    def __init__(self, tool: Literal["mlflow", "tensorboard"], run_dir: str | Path) -> None:
        """Raises ValueError if the tool is not installed."""
        check_extra(tool, "track")
        self._tool, self._run_dir, self._calls = tool, Path(run_dir), SimpleQueue[Callable[[], None] | None]()
        self._thread = Thread(target=self._work, name="track", daemon=True)
        self._thread.start()

    def on_begin(self, examples: int, history: History, commit: CommitFacts | None) -> None:
        self._history, self._at, self._examples, self._loss = history, time.monotonic(), 0, math.nan
        self._calls.put(lambda step=history.trained: self._open(step))

    def on_stage(self, done: StageResult) -> None:
        if trained := done.trained:
            self._examples += trained.block.num_examples
            self._loss = trained.loss if trained.block.trains else self._loss
            if trained.metrics:
                self._log({f"{name}/{trained.block.split}": value for name, value in trained.metrics.items()})
            self._log_speed(SECONDS)

    def on_end(self, how: Outcome, text: str) -> None:
        self._log_speed(0.0)
        result = (result_of(self._run_dir) if how == "finished" else None) or {}
        single = {name: value for name, value in result.items() if not isinstance(value, dict | list)}
        self._calls.put(lambda: self._close(how, single))
        self._calls.put(None)
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self._warn(f"no answer for {END_SECONDS:.0f} s")

    def _log_speed(self, every: float) -> None:
        seconds = time.monotonic() - self._at
        if self._examples and seconds >= every:
            self._log({"examples_per_second": self._examples / max(seconds, 1e-9), "loss": self._loss})
            self._at, self._examples, self._loss = self._at + seconds, 0, math.nan

    def _log(self, values: Mapping[str, float]) -> None:
        finite = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in values.items() if math.isfinite(value)}
        if self._thread.is_alive():
            self._calls.put(lambda step=self._history.trained: self._add(finite, step))

    def _work(self) -> None:
        try:
            while call := self._calls.get():
                call()
        except Exception as error:
            self._warn(" ".join(str(error).split()) or type(error).__name__)

    def _warn(self, what: str) -> None:
        print(f"warning: {self._tool}: {what}; the rest of the run is not logged", file=sys.stderr, flush=True)

    def _open(self, step: int) -> None:
        settings = dict(flat_settings(json.loads((self._run_dir / "workflow.json").read_bytes())))
        begin = to_mlflow if self._tool == "mlflow" else to_tensorboard
        self._add, self._close = begin(self._run_dir, settings, step)


def to_mlflow(run_dir: Path, settings: Mapping[str, Any], step: int) -> Log:
    """Begin the MLflow run of a run directory, or go on with the one whose id is in its file `mlflow_run`."""
    import mlflow

    file, known = run_dir / "mlflow_run", mlflow.get_experiment_by_name(settings["name"])
    experiment = known.experiment_id if known else mlflow.create_experiment(settings["name"])
    mlflow.end_run()
    run = mlflow.start_run(file.read_text() if file.exists() else None, experiment, run_dir.resolve().name)
    file.write_text(run.info.run_id)
    # MLflow refuses a second value of a parameter.
    mlflow.log_params({name: value for name, value in settings.items() if name not in run.data.params})

    def close(how: Outcome, result: Mapping[str, Any]) -> None:
        mlflow.set_tags({f"result.{name}": value for name, value in result.items()})
        mlflow.end_run({"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[how])

    return mlflow.log_metrics, close


def to_tensorboard(run_dir: Path, settings: Mapping[str, Any], step: int) -> Log:
    """Begin a file in the folder `tensorboard` of a run directory. Points after `step` in earlier ones are hidden."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1, flush_secs=int(SECONDS))
    writer.add_text("settings", f"```\n{json.dumps(settings, indent=1)}\n```", step)

    def add(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    def close(how: Outcome, result: Mapping[str, Any]) -> None:
        writer.add_text("result", f"```\n{json.dumps({'outcome': how, **result}, indent=1)}\n```", step)
        writer.close()

    return add, close
