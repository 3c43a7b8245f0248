"""Decisions that follow from the validation of each epoch: learning rates, when training stops, which epoch is the
best."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.commits.manifest import Manifest
from pipeline.data.agenda import Position
from pipeline.monitor.history import History
from pipeline.optim.plateau import EpochVerdict, judge
from pipeline.workflow import Workflow


class BestEpoch:
    """A function of the history; it keeps nothing."""

    def __init__(self, workflow: Workflow) -> None:
        self._plateau, self._optimizer = workflow.schedule.plateau, workflow.optimizer

    @property
    def is_tested(self) -> bool:
        """Return whether the test is of the best epoch, not of the last."""
        return self._plateau is not None

    def verdict(self, history: History) -> EpochVerdict:
        metric = self._plateau.metric if self._plateau else "auc"
        return judge(metric, history.validated(metric))

    def stops(self, history: History) -> bool:
        return self.verdict(history).stops(self._plateau)

    def is_last(self, history: History) -> bool:
        """Return whether the last validated epoch is the best."""
        verdict = self.verdict(history)
        return verdict.best is not None and verdict.in_a_row == 0

    def learning_rates(self, history: History) -> tuple[float, float]:
        """Return the learning rates of rows and dense part, before warm-up."""
        verdict = self.verdict(history)
        rows, dense = (verdict.lr(lr, self._plateau) for lr in (self._optimizer.rows.lr, self._optimizer.dense.lr))
        return rows, dense

    def commit(self, kept: Sequence[Manifest], history: History) -> tuple[Manifest, int, str | None]:
        """The commit that is to be tested, the epoch that it is of, and what a user should know of it."""
        opened = next((manifest for manifest in reversed(kept) if manifest.name == "best"), kept[-1])
        epoch, best = Position(**opened.state["position"]).epoch - 1, self.verdict(history).best
        if best is None or epoch == best:
            return opened, epoch, None
        remark = (
            f"the best epoch is {best + 1}, and its commit is not there any more, or never was: epoch {epoch + 1} is "
            "tested instead"
        )
        return opened, epoch, remark
