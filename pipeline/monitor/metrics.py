"""What an evaluated split reports: exact AUC and logloss of each label.

B examples of a batch    T labels
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.monitor.auc import SPILL_BOUND, ExactAUC
from pipeline.records import F32

F64 = NDArray[np.float64]


def cross_entropy(logits_BT: F32, labels_BT: F32) -> F64:
    """[B, T] binary cross-entropy in nats, in float64; labels are 0 or 1.

    Never NaN for a logit that is not: an infinite one costs nothing or infinity.
    """
    # With z = x for label 0 and -x for label 1: log(1 + exp(z)), without overflow.
    wrong_BT = np.where(labels_BT == 1, -logits_BT, logits_BT).astype(np.float64)
    return np.maximum(wrong_BT, 0) + np.log1p(np.exp(-np.abs(wrong_BT)))


class Evaluation:
    """Accumulates the outputs of one split, batch by batch; batches come in the same order in every run.

    Memory: 8 bytes an example and label, for at most `bound` examples; beyond that AUC spills to `spill_dir`.
    """

    def __init__(self, labels: tuple[str, ...], spill_dir: Path, bound: int = SPILL_BOUND) -> None:
        self._labels = labels
        self._aucs = [ExactAUC(spill_dir, bound) for _ in labels]
        self._reset()

    def add(self, outputs_BT: F32, labels_BT: F32, weights_B: F32 | None = None) -> None:
        """Take one batch of logits. ValueError: a NaN output, a label other than 0 and 1, a bad weight."""
        for t, auc in enumerate(self._aucs):
            auc.add(outputs_BT[:, t], labels_BT[:, t], weights_B)
        weights = np.ones(len(outputs_BT)) if weights_B is None else weights_B.astype(np.float64)
        losses_BT = cross_entropy(outputs_BT, labels_BT)
        # Each label summed along contiguous memory: its bits depend neither on the layout nor on other labels.
        self._losses_T += np.ascontiguousarray((losses_BT * weights[:, None]).T).sum(axis=1)
        self._weight += float(weights.sum())
        self._examples += len(outputs_BT)

    def result(self) -> dict[str, float]:
        """`auc` and `logloss` of the first label, `auc_<label>` and `logloss_<label>` of each if there are
        several, and `examples`; starts anew. A mean over no weight is nan. ValueError: no examples."""
        if self._examples == 0:
            raise ValueError("evaluation of a split without examples: expected at least one batch")
        aucs = [auc.result() for auc in self._aucs]
        losses = [loss / self._weight if self._weight else float("nan") for loss in self._losses_T.tolist()]
        metrics: dict[str, float] = {"auc": aucs[0], "logloss": losses[0]}
        if len(self._labels) > 1:
            for label, auc, loss in zip(self._labels, aucs, losses, strict=True):
                metrics |= {f"auc_{label}": auc, f"logloss_{label}": loss}
        metrics["examples"] = self._examples
        self._reset()
        return metrics

    def _reset(self) -> None:
        self._losses_T: F64 = np.zeros(len(self._labels))
        self._weight = 0.0
        self._examples = 0
