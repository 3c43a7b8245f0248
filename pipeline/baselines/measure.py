"""Loglosses of simple models on the split used to evaluate a run's model, and advice if that model is not better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.baselines.logistic import chances, fitted
from pipeline.baselines.one_hot import F64, Encoder, OneHot
from pipeline.data.source import Source
from pipeline.machine.threads import share_of
from pipeline.workflow import Workflow

MOST_ROWS = 1_000_000
"""Maximum number of rows, of training and of the evaluated split, for computing baselines: reading more takes too long.
"""
SAMPLE_ROWS, SAMPLE_VALUES = 200_000, 4_000_000
"""Maximum number of training rows, and of values in all their columns, used for baselines: a few seconds and half a GiB
of memory."""
L2 = (50.0, 10.0, 2.0)
"""L2 of each logistic regression, in units of one example's logloss. The best regression counts."""
PRIOR_ROWS = 20.0
"""Number of rows with the mean rate added to the rows of each value, as a prior."""
NAMES = {"base_rate": "the mean label", "logistic_regression": "logistic regression", "best_column": "the rates of"}

Baselines = dict[str, dict[str, Any]]
"""For each binary label: the evaluated split, the number of training rows used, and their total number; the loglosses
of each model of `NAMES` and of the run's model, and the name of the best column."""


def baselines_of(workflow: Workflow, evaluation: Mapping[str, Any], ended: Callable[[], bool]) -> Baselines | None:
    """Compute the baselines on the split of an evaluation, which contains the metrics of the run's model. Return None
    if the data are too large, no label is binary, or `ended` returned True."""
    split, tasks = evaluation["split"], workflow.data.all_tasks
    labels = {task.label: t for t, task in enumerate(tasks) if task.is_binary}
    if not labels:
        return None
    source = Source(workflow.data, workflow.seed, share_of(workflow.schedule.threads))
    try:
        if max(source.num_examples["train"], source.num_examples[split]) > MOST_ROWS:
            return None
        found = dict(zip(labels, _measured(source, workflow, split, list(labels.values()), ended), strict=True))
    except Ended:
        return None
    finally:
        source.close()
    for label, of in found.items():
        of["model"] = evaluation["logloss" if len(tasks) == 1 else f"logloss_{label}"]
    return {label: {name: _rounded(value) for name, value in of.items()} for label, of in found.items()}


class Ended(Exception):
    """The run was asked to stop."""


def _measured(
    source: Source, workflow: Workflow, split: str, labels: Sequence[int], ended: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Yield the baselines of each label. Raises Ended if the run was asked to stop."""
    data, layout = workflow.data, source.layout
    names = [data.categories[field].name for field in layout.single_S]
    names += [number.name for number in data.numbers]
    names += [data.categories[field].name for field in layout.multi_M]
    encoder = Encoder(source, min(SAMPLE_ROWS, SAMPLE_VALUES // len(names)))
    models = [_Models(encoder, label, len(names), ended) for label in labels]
    for part in encoder.read(split):
        for model in models:
            model.judge(part)
    for model in models:
        yield {
            "split": split,
            "rows": len(encoder.train.labels_NT),
            "of": source.num_examples["train"],
            **model.result(names),
        }


class _Models:
    """Baselines of one label, and the sums of their losses on the evaluated rows."""

    def __init__(self, encoder: Encoder, label: int, num_columns: int, ended: Callable[[], bool]) -> None:
        """Fit the models. Raises Ended if the run was asked to stop."""
        self._label, train = label, encoder.train
        labels_N, weights_N = self._truth(train)
        # Add half a row of each class, so that the logloss stays finite if the sample has only one class.
        self._rate = (float((weights_N * labels_N).sum()) + 0.5) / (float(weights_N.sum()) + 1)
        counts, sums = (train.back(of_N, encoder.num_features) for of_N in (weights_N, weights_N * labels_N))
        self._rates = (sums + PRIOR_ROWS * self._rate) / (counts + PRIOR_ROWS)
        self._rates[0] = self._rate
        w_M = np.append(np.zeros(encoder.num_features), math.log(self._rate / (1 - self._rate)))
        self._fits: list[F64] = []
        for l2 in L2:
            if ended():
                raise Ended
            self._fits.append(w_M := fitted(train, labels_N, weights_N, l2, w_M))
        self._weight, self._base = 0.0, 0.0
        self._of_column, self._of_fit = np.zeros(num_columns), np.zeros(len(L2))

    def _truth(self, rows: OneHot) -> tuple[F64, F64]:
        """Labels [N] and weights [N]; both are 0 for examples without the label."""
        labels_N = rows.labels_NT[:, self._label].astype(np.float64)
        return np.nan_to_num(labels_N), np.where(np.isnan(labels_N), 0.0, rows.weights_N)

    def judge(self, rows: OneHot) -> None:
        """Add the losses of these rows."""
        labels_N, weights_N = self._truth(rows)
        self._weight += float(weights_N.sum())
        self._base += _loss(np.full(len(labels_N), self._rate), labels_N, weights_N)
        for c, rates_N in enumerate(rows.by_column(self._rates)):
            # The mean over an empty list is 0, so use the mean rate instead.
            self._of_column[c] += _loss(np.where(rates_N > 0, rates_N, self._rate), labels_N, weights_N)
        for n, w_M in enumerate(self._fits):
            self._of_fit[n] += _loss(chances(rows.sums(w_M[:-1]) + w_M[-1]), labels_N, weights_N)

    def result(self, names: Sequence[str]) -> dict[str, Any]:
        """Mean losses, and the name of the best column."""
        weight = self._weight or math.nan
        best = int(self._of_column.argmin())
        return {
            "base_rate": self._base / weight,
            "logistic_regression": float(self._of_fit.min()) / weight,
            "best_column": float(self._of_column[best]) / weight,
            "column": names[best],
        }


def _loss(chances_N: F64, labels_N: F64, weights_N: F64) -> float:
    """Weighted sum of the loglosses."""
    inside_N = np.clip(chances_N, 1e-12, 1 - 1e-12)
    return -float((weights_N * np.where(labels_N > 0.5, np.log(inside_N), np.log1p(-inside_N))).sum())


def _rounded(value: Any) -> Any:
    """Round a number for the result: linear algebra libraries differ in the last digits."""
    return round(value, 6) if isinstance(value, float) and math.isfinite(value) else value


def report_of(found: Baselines, workflow: Workflow) -> Iterator[str]:
    """Yield lines with the baselines of each label and, if the model does not beat all of them, advice."""
    for label, of in found.items():
        shown = {name: f"{said} {of['column']}" if name == "best_column" else said for name, said in NAMES.items()}
        best = min(NAMES, key=lambda name: of[name])
        figures = ", ".join(f"{shown[name]} {of[name]:.5f}" for name in sorted(NAMES, key=lambda name: of[name]))
        whose = f" of {label}" if len(found) > 1 else ""
        yield (
            f"{of['split']} logloss{whose}: this model {of['model']:.5f}; for comparison, from {of['rows']:,} training "
            f"rows: {figures}"
        )
        if not of["model"] < of[best]:
            tries = (f"\n  {n}. {advice}" for n, advice in enumerate(advice_for(workflow, of["of"]), 1))
            yield f"warning: the model{whose} is no better than {shown[best]}; try, in this order:{''.join(tries)}"


def advice_for(workflow: Workflow, rows: int) -> Iterator[str]:
    """Yield advice for a model that is no better than simple ones, most effective first. Advice already followed is
    omitted."""
    row, data = workflow.optimizer.rows, workflow.data
    is_dense = row.kind == "adam" and row.semantics == "dense" and row.l2 > 0
    if not is_dense:
        yield (
            "regularize all rows at every step, by 10 / training rows: --set optimizer.rows.semantics=dense --set "
            f"optimizer.rows.l2={10 / rows:.2g}"
        )
    else:
        yield f"stronger L2, as every column of rare ids needs: --set optimizer.rows.l2={5 * row.l2:.2g}"
    if not (workflow.schedule.plateau and workflow.schedule.plateau.metric.startswith("logloss")) and data.validation:
        yield (
            'stop at the best epoch by logloss: schedule.plateau=Plateau(metric="logloss", stop_after=3), and epochs=20'
        )
    if not workflow.model.initial_bias:
        yield "begin at the positive rate: model.initial_bias = log(rate / (1 - rate))"
    if workflow.model.kind.__name__ != "LR" and len(data.labels) == 1:
        yield "a linear model: kind=LR, embedding_dim=0, args={}; `pipeline init --try` compares both"
    of_rows, of_network = min(1e-3, row.lr / 3), min(3e-4, workflow.optimizer.dense.lr / 3)
    yield f"lower rates: --set optimizer.rows.lr={of_rows:.1g} --set optimizer.dense.lr={of_network:.1g}"
    yield "`pipeline doctor` on the workflow: broken columns, drift between the splits"
