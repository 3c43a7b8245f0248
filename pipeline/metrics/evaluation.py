"""Metrics of a split, per label: AUC, logloss, normalized entropy, calibration, and AUC within groups; for a
label that is any number, the errors of its prediction.

B examples of a batch    T labels
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

from pipeline.metrics.auc import AUC, check_scores, check_weights, score_bytes
from pipeline.metrics.groups import GROUP_BYTES, GroupMetrics
from pipeline.metrics.rates import cross_entropy, errors, probability, rates
from pipeline.records import F32, F64, U64, MetricSums
from pipeline.workflow import Workflow

SMALL_BOUND = 1e-6
"""Largest possible error of an AUC that is not reported."""


def evaluation_bytes(workflow: Workflow, num_examples: int) -> int:
    """Maximum bytes of memory that the evaluation of this many examples takes."""
    num_labels = sum(task.is_binary for task in workflow.data.all_tasks)
    grouped = GROUP_BYTES * num_examples if workflow.metrics.group else 0
    return num_labels * (score_bytes(num_examples) + grouped)


class Evaluation:
    """Metrics of one split, accumulated batch by batch. Batches come in the same order in every run. Memory: see
    `evaluation_bytes`."""

    def __init__(
        self, labels: tuple[str, ...], grouped: bool = False, top: int = 0, numbers: Collection[str] = ()
    ) -> None:
        """`grouped`: add the metrics within groups; `top`: see `GroupMetrics`. `numbers`: labels that are any
        number."""
        self._labels = labels
        binary = [label for label in labels if label not in numbers]
        self._aucs = {label: AUC() for label in binary}
        self._groups = {label: GroupMetrics(top) for label in binary if grouped}
        self._reset()

    @classmethod
    def of(cls, workflow: Workflow) -> Evaluation:
        """Evaluation with the workflow's labels and metrics."""
        data, metrics = workflow.data, workflow.metrics
        numbers = {task.label for task in data.all_tasks if not task.is_binary}
        return cls(data.labels, metrics.group is not None, metrics.top or 0, numbers)

    def add(self, outputs_BT: F32, labels_BT: F32, weights_B: F32 | None = None, groups_B: U64 | None = None) -> None:
        """Add one batch of logits or, for a label that is any number, predictions. A label that is NaN does not count.
        Raises ValueError if an output is NaN, another label is neither 0 nor 1, or a weight is negative or not
        finite."""
        self._examples += len(outputs_BT)
        for t in range(len(self._labels)):
            has_B = ~np.isnan(labels_BT[:, t])
            # If no label is missing, everything is a view.
            some = slice(None) if has_B.all() else has_B
            self._add_label(
                t, outputs_BT[some, t], labels_BT[some, t], None if weights_B is None else weights_B[some],
                None if groups_B is None else groups_B[some],
            )  # fmt: skip

    def _add_label(self, t: int, outputs_B: F32, labels_B: F32, weights_B: F32 | None, groups_B: U64 | None) -> None:
        label = self._labels[t]
        weights = np.ones(len(outputs_B)) if weights_B is None else weights_B.astype(np.float64)
        terms: tuple[F64, ...]
        if label in self._aucs:
            self._aucs[label].add(outputs_B, labels_B, weights_B)
            if self._groups:
                assert groups_B is not None
                self._groups[label].add(outputs_B, labels_B, groups_B, weights_B)
            terms = (cross_entropy(outputs_B, labels_B), probability(outputs_B), labels_B.astype(np.float64))
        else:
            check_scores(outputs_B)
            check_weights(weights.astype(np.float32))
            number_B = labels_B.astype(np.float64)
            terms = ((outputs_B - number_B) ** 2, np.abs(outputs_B - number_B), number_B, number_B**2)
        # Summed along contiguous memory: the bits do not depend on the layout.
        self._sums_ST[: len(terms), t] += [np.ascontiguousarray(terms_B * weights).sum() for terms_B in terms]
        self._weight_T[t] += weights.sum()
        self._count_T[t] += len(outputs_B)

    def result(self) -> dict[str, float]:
        """Return the metrics and reset all sums. For the first label, the metrics are `auc`, `auc_bound` if its error
        may exceed `SMALL_BOUND`, those of `rates` and, if grouped, those of `GroupMetrics.result`; or those of `errors`
        if the label is any number. With several labels,
        also `auc_<label>` and so on for each. Also `examples`, and `examples_<label>` for a label that some examples
        do not have. Raises ValueError if there were no examples."""
        if self._examples == 0:
            raise ValueError("evaluation of a split without examples: expected at least one batch")
        found = [self._of_label(t) for t in range(len(self._labels))]
        metrics = dict(found[0])
        if len(self._labels) > 1:
            for label, metrics_of_label in zip(self._labels, found, strict=True):
                metrics |= {f"{name}_{label}": value for name, value in metrics_of_label.items()}
        metrics["examples"] = self._examples
        self._reset()
        return metrics

    @property
    def _tables(self) -> list[AUC | GroupMetrics]:
        """One table of scores per label that is 0 or 1; then, if grouped, one of scores with groups per such label."""
        return [*self._aucs.values(), *self._groups.values()]

    def close(self) -> tuple[MetricSums, list[Iterator[U64]]]:
        """Return one worker's part of a split, for `join` in another evaluation, and reset. The part consists of the
        sums and the entries of each table."""
        sums = (self._examples, self._count_T, self._weight_T, self._sums_ST)
        self._reset()
        return sums, [table.take() for table in self._tables]

    def join(self, sums: MetricSums, scores: Callable[[int], Iterable[U64]]) -> None:
        """Add one worker's part of a split. `scores` returns the entries of a table, [C, n] at a time."""
        for number, table in enumerate(self._tables):
            for words_CN in scores(number):
                table.join(words_CN)
        examples, count_T, weight_T, sums_ST = sums
        self._examples += examples
        self._count_T += count_T
        self._weight_T += weight_T
        self._sums_ST += sums_ST

    def _of_label(self, label: int) -> dict[str, float]:
        sums, name = self._sums_ST[:, label].tolist(), self._labels[label]
        weight, count = float(self._weight_T[label]), int(self._count_T[label])
        if name in self._aucs:
            loss, predicted, clicked, _ = sums
            auc, bound = self._aucs[name].result()
            inexact = {"auc_bound": bound} if bound > SMALL_BOUND else {}
            metrics = {"auc": auc, **inexact, **rates(loss, predicted, clicked, weight)}
        else:
            squared, absolute, of_label, of_label_squared = sums
            metrics = errors(squared, absolute, of_label, of_label_squared, weight)
        if count < self._examples:
            metrics["examples"] = count
        if name in self._groups:
            metrics |= self._groups[name].result()
        return metrics

    def _reset(self) -> None:
        self._sums_ST: F64 = np.zeros((4, len(self._labels)))
        """[4, T] weighted sums: of cross-entropy, predicted probability, label, and 0; for a label that is any number,
        those of `errors`."""
        self._weight_T: F64 = np.zeros(len(self._labels))
        self._count_T = np.zeros(len(self._labels), np.int64)
        """[T] weight and number of examples that have each label."""
        self._examples = 0
