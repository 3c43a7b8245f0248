"""Observers: objects that the driver calls for each event of a run. The driver knows nothing else about them."""

from __future__ import annotations

from pipeline.driver.result import METRICS, lines_of
from pipeline.monitor.history import History
from pipeline.monitor.progress import Progress
from pipeline.monitor.report import evaluated
from pipeline.records import StageResult
from pipeline.storage.folder import Folder


class Observer:
    """Base class of observers; its methods do nothing."""

    def on_begin(self, examples: int, history: History) -> None:
        """Called when a run begins, or restarts from a commit. `examples`: examples of the agenda before that position;
        `history`: the history up to it."""

    def on_stage(self, done: StageResult) -> None:
        """Called with the result of each stage, in block order, when the driver retires the block: up to 2L + 2 blocks
        after the stage ran. The history already includes it."""

    def on_early_end(self, left: int) -> None:
        """Called when training ends before its last epoch. `left`: number of examples that the test still has."""

    def on_line(self, text: str) -> None:
        """Called with a line of text for the user."""


class TerminalDisplay(Observer):
    """Shows progress, evaluations and lines on a terminal, or in a log."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._examples = progress, 0

    def on_begin(self, examples: int, history: History) -> None:
        self._examples, self._history = examples, history
        self._progress.begin_at(examples)

    def on_stage(self, done: StageResult) -> None:
        if done.trained:
            self._examples += done.trained.block.num_examples
            self._progress.update(self._examples, done.trained.loss, self._history.ready)
            if done.trained.metrics:
                self.on_line(evaluated(self._history.epochs[-1]))

    def on_early_end(self, left: int) -> None:
        self._progress.end_at(self._examples + left)

    def on_line(self, text: str) -> None:
        self._progress.line(text)


class MetricsFile(Observer):
    """Writes `metrics.jsonl`, one line for each evaluation."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def on_begin(self, examples: int, history: History) -> None:
        self._history = history

    def on_stage(self, done: StageResult) -> None:
        if done.trained and done.trained.metrics:
            self._folder.files.replace(self._folder.path / METRICS, [lines_of(self._history.epochs)])
