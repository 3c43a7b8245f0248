"""Second-epoch collapse: validation gets worse from the second epoch on, while the training loss still falls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.doctor.finding import Finding
from pipeline.doctor.measures import auc_error

COLLAPSE_ERRORS = 3.0
"""Number of standard errors of the AUC by which a later epoch must be worse than the first. Both are evaluated on the
same examples, so the error of their difference is smaller."""
LOSS = 1.05
"""Minimum growth factor of the logloss if the split is too small for the AUC to show a collapse."""


def find_second_epoch(evaluations: Sequence[Mapping[str, Any]], label_rate: float) -> list[Finding]:
    """Check the lines of a run's metrics.jsonl. `label_rate`: mean label of the validation split."""
    of = {split: [line for line in evaluations if line.get("split") == split] for split in ("train", "validation")}
    epochs = [line for line in of["validation"] if _is_known(line)]
    if len(epochs) < 2 or epochs[0].get("epoch") != 1:
        return []
    (first, second), worst = epochs[:2], min(epochs[1:], key=lambda line: line["auc"])
    positive = label_rate * float(first.get("examples", 0))
    error = auc_error(first["auc"], round(positive), round(first.get("examples", 0) - positive))
    # The second epoch may be only a little worse, and each later one a little worse than the last.
    drop, growth = first["auc"] - worst["auc"], worst["logloss"] / first["logloss"]
    recovers = any(line["auc"] >= first["auc"] or line["logloss"] <= first["logloss"] for line in epochs[2:])
    losses = [line["logloss"] for line in of["train"] if isinstance(line.get("logloss"), float)]
    if recovers or second["logloss"] <= first["logloss"] or (len(losses) > 1 and losses[1] >= losses[0]):
        return []
    if drop <= COLLAPSE_ERRORS * error and not (drop > 0 and growth >= LOSS):
        return []
    falls = f", while that of training falls from {losses[0]:.4f} to {losses[1]:.4f}" if len(losses) > 1 else ""
    shown, until = [first, second], ""
    if worst is not second:
        shown, until = [first, second, worst], f" in epoch {worst['epoch']}"
    auc, logloss = (", then ".join(f"{line[name]:.4f}" for line in shown) for name in ("auc", "logloss"))
    said = (
        f"validation is worse from the second epoch on: AUC {auc}{until}; logloss {logloss}{until}{falls}. "
        "The model memorizes rare ids: train for one epoch, or raise optimizer.rows.l2, lower "
        "optimizer.rows.lr, or give rare ids one key (docs/tuning.md)"
    )
    return [Finding("second_epoch", "fault", (), said)]


def _is_known(line: Mapping[str, Any]) -> bool:
    return all(isinstance(line.get(name), float) and math.isfinite(line[name]) for name in ("auc", "logloss"))
