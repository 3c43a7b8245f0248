"""Metrics of a split, per label: exact AUC, logloss, normalized entropy, calibration, and AUC within groups.

B examples of a batch    T labels
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.metrics.auc import SPILL_BOUND, ExactAUC
from pipeline.metrics.groups import GroupMetrics
from pipeline.metrics.spill import SortedSpill
from pipeline.records import F32, U64, SplitSums
from pipeline.workflow import Workflow

F64 = NDArray[np.float64]
CurveSums = tuple[tuple[tuple[float, ...], ...], ...]
CURVE_BINS, CURVE_ENDS = 64, 8.0


def _tuples(curve_T3C: F64) -> CurveSums:
    return tuple(tuple(map(tuple, curve_3C)) for curve_3C in curve_T3C.tolist())


def cross_entropy(logits_BT: F32, labels_BT: F32) -> F64:
    """[B, T] binary cross-entropy in nats, in float64; labels are 0 or 1.

    NaN only for a NaN logit: an infinite logit costs 0 or infinity.
    """
    # With z = x for label 0 and -x for label 1: log(1 + exp(z)), without overflow.
    wrong_BT = np.where(labels_BT == 1, -logits_BT, logits_BT).astype(np.float64)
    return np.maximum(wrong_BT, 0) + np.log1p(np.exp(-np.abs(wrong_BT)))


def probability(logits_BT: F32) -> F64:
    """[B, T] 1 / (1 + exp(-logit)), in float64, without overflow."""
    small_BT = np.exp(-np.abs(logits_BT.astype(np.float64)))
    return np.where(logits_BT >= 0, 1.0, small_BT) / (1.0 + small_BT)


def rates(loss: float, predicted: float, clicked: float, weight: float) -> dict[str, float]:
    """`logloss`, `ne` and `calibration` from weighted sums over examples.

    ne (normalized entropy): logloss divided by that of a model that always predicts the mean label (He et al.,
    Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014); nan if only one class has weight.
    calibration: mean prediction divided by mean label; nan without a positive. All are nan if the weight is 0.
    """
    mean = clicked / weight if weight else math.nan
    entropy = -(mean * math.log(mean) + (1 - mean) * math.log1p(-mean)) if 0 < mean < 1 else math.nan
    logloss = loss / weight if weight else math.nan
    return {"logloss": logloss, "ne": logloss / entropy, "calibration": predicted / clicked if clicked else math.nan}


class Evaluation:
    """Metrics of one split, accumulated batch by batch; batches come in the same order in every run.

    Memory: 8 bytes per example and label, for at most `bound` examples; beyond that, AUC spills to `spill_dir`. If
    `grouped`, add `GroupMetrics` per label with a quarter of the bound.
    """

    def __init__(
        self, labels: tuple[str, ...], spill_dir: Path, bound: int = SPILL_BOUND, grouped: bool = False, top: int = 0
    ) -> None:
        """`top`: see `GroupMetrics`."""
        self._labels = labels
        self.curve_T3C: CurveSums = ()
        """Weight, predicted probability and label, each times the weight, of the split of the last result, summed by
        the logit, in `CURVE_BINS` bins of equal width from -`CURVE_ENDS` to `CURVE_ENDS`; the first and the last one
        have what lies beyond, too."""
        self._new = lambda: Evaluation(labels, spill_dir, bound, grouped, top)
        self._aucs = [ExactAUC(spill_dir, bound) for _ in labels]
        self._groups = [GroupMetrics(spill_dir, max(1, bound // 4), top) for _ in labels] if grouped else []
        self._reset()

    @classmethod
    def of(cls, workflow: Workflow, spill_dir: Path) -> Evaluation:
        """Evaluation with the workflow's labels and metrics."""
        return cls(
            workflow.data.labels, spill_dir, grouped=workflow.metrics.group is not None, top=workflow.metrics.top or 0
        )

    def add(self, outputs_BT: F32, labels_BT: F32, weights_B: F32 | None = None, groups_B: U64 | None = None) -> None:
        """Add one batch of logits. A label that is NaN does not count. Raises ValueError if an output is NaN, a label
        is neither 0 nor 1, or a weight is negative or not finite."""
        self._examples += len(outputs_BT)
        for t in range(len(self._labels)):
            has_B = ~np.isnan(labels_BT[:, t])
            # Without a missing label everything is a view.
            some = slice(None) if has_B.all() else has_B
            self._add_label(
                t, outputs_BT[some, t], labels_BT[some, t], None if weights_B is None else weights_B[some],
                None if groups_B is None else groups_B[some],
            )  # fmt: skip

    def _add_label(self, t: int, outputs_B: F32, labels_B: F32, weights_B: F32 | None, groups_B: U64 | None) -> None:
        self._aucs[t].add(outputs_B, labels_B, weights_B)
        if self._groups:
            assert groups_B is not None
            self._groups[t].add(outputs_B, labels_B, groups_B, weights_B)
        weights = np.ones(len(outputs_B)) if weights_B is None else weights_B.astype(np.float64)
        terms = (cross_entropy(outputs_B, labels_B), probability(outputs_B), labels_B.astype(np.float64))
        scaled_B = (outputs_B + CURVE_ENDS) * (CURVE_BINS / (2 * CURVE_ENDS))
        bins_B = np.clip(scaled_B, 0, CURVE_BINS - 1).astype(np.int64)
        of_curve = weights, weights * terms[1], weights * terms[2]
        for sums_C, summed_B in zip(self._curve_T3C[t], of_curve, strict=True):
            sums_C += np.bincount(bins_B, summed_B, CURVE_BINS)
        # Summed along contiguous memory: the bits do not depend on the layout.
        self._sums_3T[:, t] += [np.ascontiguousarray(terms_B * weights).sum() for terms_B in terms]
        self._weight_T[t] += weights.sum()
        self._count_T[t] += len(outputs_B)

    def result(self) -> dict[str, float]:
        """Return the metrics and reset all sums. The metrics are `auc`, those of `rates`, and, if grouped, those of
        `GroupMetrics.result`, of the first label; with several labels, `auc_<label>` and so on for each;
        and `examples`, with `examples_<label>` of a label that some of them do not have. Raises ValueError if there
        were no examples."""
        if self._examples == 0:
            raise ValueError("evaluation of a split without examples: expected at least one batch")
        found = [self._of_label(t) for t in range(len(self._labels))]
        metrics = dict(found[0])
        if len(self._labels) > 1:
            for label, metrics_of_label in zip(self._labels, found, strict=True):
                metrics |= {f"{name}_{label}": value for name, value in metrics_of_label.items()}
        metrics["examples"] = self._examples
        self.curve_T3C = _tuples(self._curve_T3C)
        self._reset()
        return metrics

    def close(self) -> tuple[SplitSums, list[Iterator[U64]]]:
        """Return one worker's part of a split, for `join` of another evaluation, and reset: the sums, and the sorted
        entries of each table. There is a table of scores per label and, if grouped, after those a table of scores with
        groups per label."""
        sums_3T = tuple(map(tuple, self._sums_3T.tolist()))
        counts, weights = tuple(self._count_T.tolist()), tuple(self._weight_T.tolist())
        closed = SplitSums(self._examples, counts, weights, sums_3T, _tuples(self._curve_T3C))
        taken, fresh = self._tables, self._new()
        self._aucs, self._groups = fresh._aucs, fresh._groups
        self._reset()
        return closed, [entries.take() for entries in taken]

    @property
    def _tables(self) -> list[SortedSpill]:
        return [auc.entries for auc in self._aucs] + [auc.entries for auc in self._groups]

    def join(self, closed: SplitSums, scores: Callable[[int], Iterable[U64]]) -> None:
        """Add one worker's part of a split; `scores` returns the sorted entries of a table, [C, n] at a time."""
        for number, entries in enumerate(self._tables):
            entries.add_run(scores(number))
        self._sums_3T += np.array(closed.sums_3T)
        self._curve_T3C += np.array(closed.curve_T3C)
        self._weight_T += np.array(closed.weights_T)
        self._count_T += np.array(closed.counts_T)
        self._examples += closed.examples

    def _of_label(self, label: int) -> dict[str, float]:
        loss, predicted, clicked = self._sums_3T[:, label].tolist()
        weight, count = float(self._weight_T[label]), int(self._count_T[label])
        metrics = {"auc": self._aucs[label].result(), **rates(loss, predicted, clicked, weight)}
        if count < self._examples:
            metrics["examples"] = count
        if self._groups:
            metrics |= self._groups[label].result()
        return metrics

    def _reset(self) -> None:
        self._sums_3T: F64 = np.zeros((3, len(self._labels)))
        """[3, T] sums of cross-entropy, predicted probability and label, each times the weight."""
        self._curve_T3C: F64 = np.zeros((len(self._labels), 3, CURVE_BINS))
        self._weight_T: F64 = np.zeros(len(self._labels))
        self._count_T = np.zeros(len(self._labels), np.int64)
        """[T] weight and number of the examples that have each label."""
        self._examples = 0
