"""Summaries of a run and of each evaluation, in a few lines of text, and human-readable numbers: three digits, a unit,
and no false precision."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.settings.optimizer import OF_NUMBERS
from pipeline.spans.guard import span_scores
from pipeline.spans.passes import ARRIVAL

WORST_NE = 2.0
"""Normalized entropy above which a warning is printed. Always predicting the mean label gives 1; a model may start
slightly higher."""
OFF_BY, STANDARD_ERRORS = 0.1, 5
"""A calibration differs from 1 by chance unless it does so by more than both."""
NOT_EVALUATED = "no metrics: there is no validation or test split, and no span was scored"
LAST = 31
"""Maximum number of spans in the table: the last ones."""
OF_SPANS = ("auc", "ne", "calibration", "mse", "mae")
OF_LABEL = ("auc", "auc_bound", "logloss", "ne", "calibration", "gauc", "gauc_share", "recall", "ndcg", *OF_NUMBERS)
"""Possible metrics of a label."""


def summary(result: Mapping[str, Any]) -> str:
    """Lines with the name and speed, the metrics of the last evaluation, and the fingerprint. The metrics are AUC,
    logloss and, if groups are used, AUC within groups; for a numeric label, its errors. With several labels, each has a
    line."""
    last: Mapping[str, Any] = next((e for e in reversed(result["epochs"]) if e["split"] == result["split"]), {})
    split, (_, by_label) = result["split"], of_labels(last)
    end = [*result.get("warnings", ()), f"fingerprint {result['fingerprint'] or '-'}"]
    main = ("auc", "auc_bound", "logloss", "gauc")
    trained, seconds = number(result["examples"], ",.0f"), number(result["seconds"], ",.1f")
    speed = f"{number(result['examples_per_second'], ',.0f')} a second with evaluation and commits"
    head = f"{result['name']}: {trained} training examples in {seconds} s, {speed}"
    if split is None:
        return "\n".join([head, NOT_EVALUATED, *end])
    if by_label:
        shown = {
            label: {name: of[name] for name in (*main, *OF_NUMBERS) if name in of} for label, of in by_label.items()
        }
        return "\n".join([head, f"{split}:", *label_lines(shown), *end])
    known = {name: result.get(name, last.get(name)) for name in main}
    shown_once = {name: value for name, value in known.items() if name in ("auc", "logloss") or value is not None}
    if "mse" in last:
        shown_once = {name: last[name] for name in OF_NUMBERS}
    return "\n".join([head, f"{split}: {_shown(shown_once)}", *end])


def miscalibrated(metrics: Mapping[str, Any]) -> list[str]:
    """A warning for each label of a pass whose predictions are too high or too low on average, beyond chance."""
    common, by_label = of_labels(metrics)
    return [
        f"warning: calibration of {metrics['split']}{f', {label},' * bool(label)} is {ratio:.3f}: the model predicts "
        f"{abs(ratio - 1):.0%} too {'many' if ratio > 1 else 'few'} positives (chance alone: {error:.1%}). Compare the "
        'positive rates of training and test, in time too; train for fewer epochs, or with plateau.metric "logloss" '
        "on newer validation data; if training lacks negatives, export with --prior-correction"
        for label, of in (by_label or {"": common}).items()
        if (ratio := of.get("calibration", math.nan)) == ratio
        and abs(ratio - 1) > OFF_BY
        and abs(ratio - 1)
        > STANDARD_ERRORS * (error := _chance(of, metrics.get(f"examples_{label}", metrics["examples"])))
    ]


def _chance(of: Mapping[str, float], examples: float) -> float:
    """Standard error of a calibration, from the rate whose entropy the metrics have: at most 0.5, as for clicks. With
    a higher rate the true one is smaller. Infinite if the rate is unknown."""
    entropy, low, high = base_logloss(of) or 0.0, 0.0, 0.5
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if -rate * math.log(rate) - (1 - rate) * math.log1p(-rate) < entropy else (low, rate)
    return math.sqrt((1 - low) / (low * examples)) if low else math.inf


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
    return "\n".join([*lines, *(miscalibrated(metrics) if metrics["split"] == "scored" else ())])


def span_table(epochs: Sequence[Mapping[str, Any]], out_of_place: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Lines of the table of span scores, a row for each span and label, and a line for each number of rows out of
    place; empty if no span was scored. `epochs`: entries of a history, or of `result.json`. `out_of_place`: see
    `pipeline.spans.rows.counted`."""
    scores = span_scores(epochs)
    due = {entry["span"] for entry in scores}
    scores += [entry for entry in epochs if entry["split"] == ARRIVAL and entry["span"] not in due]
    if not scores:
        return []
    rows = []
    for entry in scores[-LAST:]:
        common, by_label = of_labels({name: math.nan if of is None else of for name, of in entry.items()})
        rows += [(entry, label, of) for label, of in (by_label or {"": common}).items()]
    metrics = [name for name in OF_SPANS if any(name in of for *_, of in rows)]
    cells = [("span", "label", "examples", "trained before", *metrics)]
    for entry, label, of in rows:
        examples = entry.get(f"examples_{label}", entry["examples"])
        shown = (metric_text(name, of.get(name)) for name in metrics)
        name = f"{entry['span']} (waits)" if entry["split"] == ARRIVAL else str(entry["span"])
        cells.append((name, label, f"{examples:,}", f"{entry['trained']:,}", *shown))
    columns = [column for column in zip(*cells, strict=True) if any(column[1:])]
    wide = [max(map(len, column)) for column in columns]
    more = f", the last {LAST} of {len(scores):,}" if len(scores) > LAST else ""
    lines = [f"spans, each scored before it was trained on{more}:"]
    for first, *others in zip(*columns, strict=True):
        right = "  ".join(map(str.rjust, others, wide[1:]))
        lines.append(f"  {first:<{wide[0]}}  {right}")
    for moved in out_of_place[-LAST:]:
        said = f"trained on with {moved['trained_with']}" if moved["trained_with"] else "left out"
        lines.append(f"  {moved['span']}: {moved['rows']:,} rows {moved['kind']}, {said}")
    return lines


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


def short_number(value: float | None) -> str:
    """A count or a rate such as "874", "38.6 k", "2.00 M"; "-" for None."""
    if value is None or not math.isfinite(value):
        return "-"
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale * 0.9995:
            return f"{three_digits(value / scale)} {unit}"
    return three_digits(value) if value % 1 else f"{value:.0f}"


def three_digits(value: float) -> str:
    """A number below 1000 with at most three digits."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def short_size(num_bytes: float | None) -> str:
    """A size in bytes, such as "1.25 GiB"."""
    if num_bytes is None or not math.isfinite(num_bytes):
        return "-"
    for power, unit in ((5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(num_bytes) >= 0.9995 * 1024**power:
            value = num_bytes / 1024**power
            return f"{value:,.0f} {unit}" if value >= 999.5 else f"{three_digits(value)} {unit}"
    return f"{num_bytes:.0f} B"


def short_duration(seconds: float | None) -> str:
    """A duration in its two largest units, such as "3 min 20 s"."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.095 else f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    for big, unit, small, less in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= big:
            rest = whole % big // small
            return f"{whole // big} {unit} {rest} {less}" if rest else f"{whole // big} {unit}"
    return f"{whole} s"


def percent(share: float | None) -> str:
    """A share such as "31 %", "0.4 %", "100 %"."""
    if share is None or not math.isfinite(share):
        return "-"
    points = 100 * share
    if 0 < points < 0.1:
        return "<0.1 %"
    return f"{points:.1f} %" if points < 9.95 and round(points, 1) % 1 else f"{points:.0f} %"
