"""Observers: objects that the driver calls for each event of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.monitor.history import History
from pipeline.records import Block, StageResult

Outcome = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class ComingStretch:
    """Blocks that are about to run without a drain in between."""

    blocks: Sequence[Block]
    block_batches: int
    look_ahead: int
    lr_rows: float
    lr_dense: float
    """Learning rates, before warm-up."""


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """A commit that was published."""

    number: int
    name: str | None
    live_rows: int
    log_rows: int
    """Number of rows in all chunks of the log that this or another kept commit refers to."""
    began: float
    """Time at which the commit started, on the clock of `time.perf_counter`."""


class Observer:
    """Base class of observers; its methods do nothing."""

    def on_begin(self, examples: int, history: History, commit: CommitFacts | None) -> None:
        """Called when a run starts, or restarts from a commit. `examples`: number of examples of the agenda before that
        position; `history`: the history up to it."""

    def on_stretch(self, stretch: ComingStretch) -> None:
        """Called before a stretch runs."""

    def on_stage(self, done: StageResult) -> None:
        """Called with the result of each stage, in block order, when the driver retires the block: up to 2L + 2 blocks
        after the stage ran. The history already includes the result."""

    def on_drained(self) -> None:
        """Called when all blocks of a stretch are finished."""

    def on_commit(self, commit: CommitFacts) -> None:
        """Called after a commit is published."""

    def on_early_end(self, left: int) -> None:
        """Called when training ends before its last epoch. `left`: number of test examples still to be scored."""

    def on_line(self, text: str) -> None:
        """Called with a line of text for the user."""

    def on_end(self, how: Outcome, text: str) -> None:
        """Called when the session ends. `text`: the message of a failure."""
