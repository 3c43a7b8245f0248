"""The observers of every run: the display, metrics.jsonl, live.jsonl and the report."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Concatenate, ParamSpec

from pipeline.driver.result import METRICS, lines_of
from pipeline.monitor.history import History
from pipeline.monitor.live.lines import Begin
from pipeline.monitor.live.live_observer import LiveObserver
from pipeline.monitor.observer import CommitFacts, Observer
from pipeline.monitor.page.page import ReportFile
from pipeline.monitor.progress import Progress
from pipeline.monitor.report import evaluated
from pipeline.monitor.runs import flat_settings
from pipeline.preflight.setup import Setup
from pipeline.preflight.sizes import log_chunk_bytes
from pipeline.records import StageResult
from pipeline.schedule import edges
from pipeline.stages import STAGES
from pipeline.storage.folder import Folder

P = ParamSpec("P")


class Observers(list[Observer]):
    def notify(self, event: Callable[Concatenate[Observer, P], None], *args: P.args, **named: P.kwargs) -> None:
        """Call the method `event` of each observer."""
        for observer in self:
            getattr(observer, event.__name__)(*args, **named)


class TerminalDisplay(Observer):
    """Shows progress, evaluations and lines on a terminal or in a log."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._examples = progress, 0

    def on_begin(self, examples: int, history: History, commit: CommitFacts | None) -> None:
        self._examples, self._history = examples, history
        self._progress.begin_at(examples)

    def on_stage(self, done: StageResult) -> None:
        if done.trained:
            self._examples += done.trained.block.num_examples
            self._progress.update(self._examples, done.trained.loss)
            if done.trained.metrics:
                self.on_line(evaluated(self._history.epochs[-1]))

    def on_early_end(self, left: int) -> None:
        self._progress.end_at(self._examples + left)

    def on_line(self, text: str) -> None:
        self._progress.line(text)


class MetricsFile(Observer):
    """Writes `metrics.jsonl`, one line per evaluation."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def on_begin(self, examples: int, history: History, commit: CommitFacts | None) -> None:
        self._history = history

    def on_stage(self, done: StageResult) -> None:
        if done.trained and done.trained.metrics:
            self._folder.files.replace(self._folder.path / METRICS, [lines_of(self._history.epochs)])


PACKAGES = ("numpy", "numba", "torch", "pyarrow", "zarr", "distributed")


def live_observer(folder: Folder, setup: Setup, device: str, overlaps: bool) -> LiveObserver:
    """Create the observer that writes live.jsonl and the report. `device`: model of the device; `overlaps`: False if
    one thread runs all stages in turn."""
    workflow, sizes = setup.workflow, setup.fit.sizes
    begin = Begin(
        at=0.0, examples=0, name=workflow.name, total=setup.agenda.total_examples, epochs=workflow.schedule.epochs,
        batch_size=workflow.schedule.batch_size, workers=setup.world, device=device, row_bytes=setup.row.num_bytes,
        disk_cap_bytes=sizes.disk_chunks * log_chunk_bytes(sizes.chunk_rows, setup.row.num_bytes) * setup.world,
        versions=versions(),
    )  # fmt: skip
    settings = dict(flat_settings(json.loads(workflow.model_dump_json())))
    return LiveObserver(ReportFile(folder.path, settings), begin, STAGES, edges, overlaps)


def versions() -> dict[str, str]:
    """Versions of Python and of the main packages."""
    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}
