"""Metrics of a split, per label: AUC, logloss, normalized entropy, calibration, and AUC within groups; for a
label that is any number, the errors of its prediction.

B examples of a batch    T labels
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

from pipeline.kernels.group_areas import AREA, COUNTED, NUM_SUMS, WEIGHT, add_groups, end_group
from pipeline.kernels.group_ranks import add_ranks, end_ranks
from pipeline.metrics.auc import (
    AUC,
    Entries,
    check_scores,
    check_weights,
    pack_scores,
    pieces_of,
    score_bytes,
    unpack_scores,
)
from pipeline.metrics.rates import cross_entropy, errors, probability, rates
from pipeline.records import F32, F64, U64, MetricSums
from pipeline.workflow import Workflow

GROUP_BYTES = 32
"""Bytes of memory per example: 16, and 16 more during sorting."""


class GroupMetrics:
    """Exact metrics within groups of examples (for example, all of one user), averaged over the groups.

    gauc: AUC weighted by a group's number of examples, as in FuxiCTR's `gAUC`, or by the sum of their sample weights if
    examples have weights (Zhu et al., Optimized Cost per Click in Taobao Display Advertising, KDD 2017). recall, ndcg:
    those of the K highest scores (see `pipeline.kernels.group_ranks`). Every group with a positive has equal weight,
    and sample weights are ignored.

    Ties get half credit in AUC and expected credit in ranks. Memory: `GROUP_BYTES` per example. The result has the same
    bits for every order of the examples.
    """

    def __init__(self, top: int = 0) -> None:
        """`top`: number of ranks K for recall and ndcg; 0 omits them."""
        self._top = top
        self._entries = Entries(num_words=2)

    def add(self, scores_B: F32, labels_B: F32, groups_B: U64, weights_B: F32 | None = None) -> None:
        """Add a copy of a batch. Examples with equal `groups_B` form one group. Raises ValueError like `pack_scores`,
        without adding anything."""
        self.join(np.stack([groups_B, pack_scores(scores_B, labels_B, weights_B)]))

    def join(self, words_2N: U64) -> None:
        """Add a piece of what `take` yielded."""
        self._entries.add(words_2N)

    def take(self) -> Iterator[U64]:
        """Return an iterator over all examples since the last call, in pieces for the `join` of another object."""
        return pieces_of(self._entries.take())

    def result(self) -> dict[str, float]:
        """Return the metrics of all examples since the last call. `gauc`: weighted mean of the groups' AUCs, nan if no
        group counts. `gauc_share`: share of the total weight in groups that count, nan if there is no weight. A group
        in which a class is absent or has no weight does not count. With `top` also `recall` and `ndcg`: means over the
        groups with a positive, nan if there are none."""
        last, sums = np.zeros(2, np.uint64), np.zeros(NUM_SUMS)
        open_4, ties_K2, ranks_3 = np.zeros(4, np.uint64), np.zeros((max(1, self._top), 2), np.int64), np.zeros(3)
        for groups_N, keys_N in pieces_of(_sorted(self._entries.take())):
            scores_N, is_positive_N, weights_N = unpack_scores(keys_N)
            add_groups(groups_N, scores_N, is_positive_N, weights_N, last, sums)
            if self._top:
                add_ranks(groups_N, scores_N, is_positive_N, open_4, ties_K2, ranks_3)
        end_group(sums)
        end_ranks(open_4, ties_K2, ranks_3)
        area, counted, weight = sums[[AREA, COUNTED, WEIGHT]].tolist()
        metrics = {"gauc": _mean(area, counted), "gauc_share": _mean(counted, weight)}
        if self._top:
            recall, ndcg, groups = ranks_3.tolist()
            metrics |= {"recall": _mean(recall, groups), "ndcg": _mean(ndcg, groups)}
        return metrics


def _sorted(words_2N: U64) -> U64:
    """Sort entries in place, by group, then by score."""
    order_N = np.lexsort(words_2N[::-1])
    for word_N in words_2N:
        word_N[:] = word_N[order_N]
    return words_2N


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan


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
