"""Summaries of a run and of each evaluation, in a few lines of text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pipeline.settings.optimizer import OF_NUMBERS

WORST_NE = 2.0
"""Normalized entropy above which a warning is printed. Always predicting the mean label gives 1; a model may start
slightly higher."""
NOT_EVALUATED = "no metrics: there is no validation or test split, and no span was scored"
OF_LABEL = ("auc", "auc_bound", "logloss", "ne", "calibration", "gauc", "gauc_share", "recall", "ndcg", *OF_NUMBERS)
"""Possible metrics of a label."""


def summary(result: Mapping[str, Any]) -> str:
    """Lines with the name and speed, the metrics of the last evaluation, and the fingerprint. The metrics are AUC,
    logloss and, if groups are used, AUC within groups; for a numeric label, its errors. With several labels, each has a
    line."""
    last: Mapping[str, Any] = next((e for e in reversed(result["epochs"]) if e["split"] == result["split"]), {})
    split, (_, by_label) = result["split"], of_labels(last)
    main = ("auc", "auc_bound", "logloss", "gauc")
    trained, seconds = number(result["examples"], ",.0f"), number(result["seconds"], ",.1f")
    speed = f"{number(result['examples_per_second'], ',.0f')} a second with evaluation and commits"
    head = f"{result['name']}: {trained} training examples in {seconds} s, {speed}"
    fingerprint = f"fingerprint {result['fingerprint'] or '-'}"
    if split is None:
        return "\n".join([head, NOT_EVALUATED, fingerprint])
    if by_label:
        shown = {
            label: {name: of[name] for name in (*main, *OF_NUMBERS) if name in of} for label, of in by_label.items()
        }
        return "\n".join([head, f"{split}:", *label_lines(shown), fingerprint])
    known = {name: result.get(name, last.get(name)) for name in main}
    shown_once = {name: value for name, value in known.items() if name in ("auc", "logloss") or value is not None}
    if "mse" in last:
        shown_once = {name: last[name] for name in OF_NUMBERS}
    return "\n".join([head, f"{split}: {_shown(shown_once)}", fingerprint])


def evaluated(metrics: Mapping[str, Any]) -> str:
    """A line with the metrics of one pass over a split (an entry of `History.epochs`). With several labels, each has a
    line below it. Each normalized entropy above `WORST_NE` adds a warning line."""
    how = ""
    if metrics["split"] == "train" and "examples" in metrics:
        how = f"progressive, in training mode: dropout and batch norm as in training; {metrics['examples']:,} examples"
    if "from_example" in metrics:
        how = f"{how}{', ' * bool(how)}from example {metrics['from_example']:,} on, where the run was resumed"
    how = f" ({how})" if how else ""
    epoch = f"epoch {metrics['epoch']} " if "epoch" in metrics else ""
    if "span" in metrics:
        epoch, how = "", f" {metrics['span']}, before it is trained on"
    common, by_label = of_labels(metrics)
    lines = [f"{epoch}{metrics['split']}{how}:{' ' if common else ''}{_shown(common)}"]
    lines += label_lines(by_label)
    ne = {label: of.get("ne", math.nan) for label, of in by_label.items()} if by_label else {"": common.get("ne", 0)}
    for label, value in ne.items():
        if value > WORST_NE:
            where = f"{metrics['split']}, {label}," if label else metrics["split"]
            lines.append(
                f"warning: ne of {where} is {value:.3g}: worse by that factor than always predicting "
                "the mean label; lower optimizer.dense.lr or optimizer.rows.lr, or check the labels"
            )
    return "\n".join(lines)


def of_labels(metrics: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Split the metrics of a pass into those without a label and those of each label, whose names end with the label.
    With several labels, metrics that the first label has under both names are kept only under the label."""
    values = {name: value for name, value in metrics.items() if isinstance(value, float)}
    found = (re.fullmatch("(?:ne|mse)_(.*)", name, re.DOTALL) for name in values)
    labels = list(dict.fromkeys(name[1] for name in found if name))
    by_label = {
        label: {name: values[f"{name}_{label}"] for name in OF_LABEL if f"{name}_{label}" in values} for label in labels
    }
    named = {f"{name}_{label}" for label in labels for name in OF_LABEL}
    common = {n: value for n, value in values.items() if n not in named and not (labels and n in OF_LABEL)}
    return common, by_label


def label_lines(by_label: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each label, with its metrics in columns."""
    wide = max(map(len, by_label), default=0)
    return [f"  {label:<{wide}}  {_shown(metrics)}" for label, metrics in by_label.items()]


def _shown(metrics: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {metric_text(name, value)}{_constant(name, metrics)}" for name, value in metrics.items())


def metric_text(name: str, value: float | None) -> str:
    """Value of a metric as text."""
    return number(value, ".1e" if name == "auc_bound" else ".5f")


def _constant(name: str, metrics: Mapping[str, Any]) -> str:
    """Suffix of a logloss: the logloss of always predicting the mean label. Empty for other metrics."""
    base = base_logloss(metrics) if name == "logloss" else None
    return "" if base is None else f" (always the mean: {base:.5f})"


def base_logloss(metrics: Mapping[str, Any]) -> float | None:
    """Logloss of always predicting the mean label, from the metrics of a label; None if it is undefined."""
    ne = metrics.get("ne")
    return metrics["logloss"] / ne if ne and math.isfinite(ne) else None


def number(value: float | None, style: str) -> str:
    """Value in the format `style`; "-" for None or nan."""
    return "-" if value is None or math.isnan(value) else format(value, style)
