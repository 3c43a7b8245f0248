"""Decisions made from the validation of each epoch: learning rates, early stopping, and the best epoch."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.commits.manifest import Manifest
from pipeline.data.agenda import Position
from pipeline.monitor.history import History
from pipeline.optim.plateau import EpochVerdict, judge
from pipeline.optimizer import Plateau
from pipeline.workflow import Workflow


class BestEpoch:
    """Decides from the history of validations alone; holds no state of its own."""

    def __init__(self, workflow: Workflow) -> None:
        self._plateau, self._optimizer = workflow.schedule.plateau, workflow.optimizer
        self._num_labels = len(workflow.data.labels)

    @property
    def is_tested(self) -> bool:
        """True if the best epoch is tested, False if the last one."""
        return self._plateau is not None

    def verdict(self, history: History) -> EpochVerdict:
        metric, _, label = (self._plateau.metric if self._plateau else "auc").partition(":")
        # Of a single label, metrics have no name of a label.
        name = f"{metric}_{label}" if label and self._num_labels > 1 else metric
        return judge(metric, history.validated(name), (self._plateau or Plateau()).min_gain)

    def stops(self, history: History) -> bool:
        return self.verdict(history).stops(self._plateau)

    def why_early(self, history: History) -> str:
        """Say why training ends before its last epoch, and which one counts."""
        verdict = self.verdict(history)
        metric, best = self._plateau.metric if self._plateau else "auc", (verdict.best or 0) + 1
        return (
            f"training ends early: {metric} of validation was best in epoch {best}, {verdict.in_a_row} before the last"
        )

    def is_last(self, history: History) -> bool:
        """True if the last validated epoch is the best so far."""
        verdict = self.verdict(history)
        return verdict.best is not None and verdict.in_a_row == 0

    def learning_rates(self, history: History) -> tuple[float, float]:
        """Learning rates of rows and dense part, before warm-up."""
        verdict = self.verdict(history)
        rows, dense = (verdict.lr(lr, self._plateau) for lr in (self._optimizer.rows.lr, self._optimizer.dense.lr))
        return rows, dense

    def commit(self, manifests: Sequence[Manifest], history: History) -> tuple[Manifest, int, str | None]:
        """Return the commit to test, its epoch, and a remark for the user if it is not the best epoch's."""
        opened = next((manifest for manifest in reversed(manifests) if manifest.name == "best"), manifests[-1])
        epoch, best = Position(**opened.state["position"]).epoch - 1, self.verdict(history).best
        if best is None or epoch == best:
            return opened, epoch, None
        remark = (
            f"the best epoch is {best + 1}, but the run directory has no commit of it: epoch {epoch + 1} is "
            "tested instead"
        )
        return opened, epoch, remark
