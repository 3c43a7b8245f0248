"""Decisions based on the validation of each epoch: learning rates, early stopping, and the best epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.commits.manifest import Manifest
from pipeline.data.agenda import Position
from pipeline.monitor.history import History
from pipeline.optim.plateau import EpochVerdict, judge
from pipeline.settings.optimizer import OF_NUMBERS, Plateau
from pipeline.workflow import Workflow

WHY_UNDEFINED = {
    "auc": "no two examples with a weight differ in their label",
    "ne": "no two examples with a weight differ in their label",
    "gauc": "no group has examples of both labels",
    "recall": "no group has a positive",
    "ndcg": "no group has a positive",
    "logloss": "its weights are all 0, or a logit is infinite",
    **dict.fromkeys(("mse", "rmse", "mae"), "its weights are all 0, or an output is infinite"),
    "r2": "its labels are all equal",
}


class BestEpoch:
    """Decides from the validation history alone; stateless."""

    def __init__(self, workflow: Workflow) -> None:
        self._plateau, self._optimizer = workflow.schedule.plateau, workflow.optimizer
        self._num_labels = len(workflow.data.labels)
        self._default = "auc" if workflow.data.all_tasks[0].is_binary else "mse"

    @property
    def is_tested(self) -> bool:
        """True if the best epoch is tested, False if the last one is."""
        return self._plateau is not None

    def verdict(self, history: History) -> EpochVerdict:
        return judge(self._metric, self._validated(history), (self._plateau or Plateau()).min_gain)

    @property
    def _named(self) -> str:
        return self._plateau.metric if self._plateau else self._default

    @property
    def _metric(self) -> str:
        return self._named.partition(":")[0]

    def _validated(self, history: History) -> list[float]:
        label = self._named.partition(":")[2]
        # With a single label, metric names have no label suffix.
        return history.validated(f"{self._metric}_{label}" if label and self._num_labels > 1 else self._metric)

    def stops(self, history: History) -> bool:
        return self.verdict(history).stops(self._plateau)

    def why_early(self, history: History) -> str:
        """Explain why training ends before its last epoch, and name the best one."""
        verdict = self.verdict(history)
        since = f"the {verdict.in_a_row} epochs" if verdict.in_a_row > 1 else "the epoch"
        return (
            f"training ends early: {self._named} of validation was best in epoch {(verdict.best or 0) + 1}, and "
            f"{since} since then brought nothing better"
        )

    def undefined(self, history: History) -> str | None:
        """Return a warning if the last validated epoch is the first with an undefined metric."""
        *before, last = self._validated(history) or [0.0]
        if math.isfinite(last) or not all(map(math.isfinite, before)):
            return None
        change = "data.validation to files with other labels"
        if self._metric not in OF_NUMBERS:
            change = "data.validation to files with both labels"
        if self._plateau and self._metric not in ("logloss", *OF_NUMBERS):
            change += ", or schedule.plateau.metric to logloss"
        return (
            f"warning: {self._named} of validation is undefined in epoch {len(before) + 1}, since "
            f"{WHY_UNDEFINED[self._metric]}; such an epoch is neither better nor worse, and does not end training. "
            f"Change {change}"
        )

    def is_last(self, history: History) -> bool:
        """True if the last validated epoch is the best so far."""
        return self.verdict(history).best == len(self._validated(history)) - 1

    def learning_rates(self, history: History) -> tuple[float, float]:
        """Learning rates of rows and dense part, before warm-up."""
        verdict = self.verdict(history)
        rows, dense = (verdict.lr(lr, self._plateau) for lr in (self._optimizer.rows.lr, self._optimizer.dense.lr))
        return rows, dense

    def commit(self, manifests: Sequence[Manifest], history: History) -> tuple[Manifest, int, str | None]:
        """Return the commit to test, its epoch, and a remark for the user if that is not the best epoch."""
        named = (manifest for manifest in reversed(manifests) if manifest.name == "best")
        opened = next(named, manifests[-1]) if self.verdict(history).best is not None else manifests[-1]
        epoch, best = Position(**opened.state["position"]).epoch - 1, self.verdict(history).best
        if best is None:
            return (
                opened,
                epoch,
                f"{self._named} of validation was undefined in every epoch: epoch {epoch + 1} is tested",
            )
        if epoch == best:
            return opened, epoch, None
        remark = (
            f"the best epoch is {best + 1}, but the run directory has no commit of it: epoch {epoch + 1} is "
            "tested instead"
        )
        return opened, epoch, remark
