"""Metrics by epoch, and a table of the last evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import AdaptiveTicker, DataRange1d
from bokeh.plotting import figure

from pipeline.monitor.live.lines import Evaluated
from pipeline.monitor.page.panel import Followed, Nothing, Panel, chips, plot_panel
from pipeline.monitor.page.style import SPLIT_COLORS, hover_on, plain_figure
from pipeline.monitor.page.tables import html_table
from pipeline.monitor.report import OF_LABEL, metric_text, of_labels
from pipeline.monitor.story import Story
from pipeline.spans.passes import SPAN
from pipeline.spans.table import LAST

METRIC_TITLES = {
    "auc": "AUC", "logloss": "logloss, nats", "ne": "normalized entropy", "calibration": "predicted / observed",
}  # fmt: skip
NONE_YET = "No evaluation yet: the first one follows the first epoch, or when the schedule says so."


def metric_panel(name: str) -> Panel:
    """The panel of a metric by epoch or span, with a curve for each split."""
    shown = by_epoch(METRIC_TITLES[name])

    def columns(evaluations: Sequence[Evaluated], first: int) -> dict[str, list[float]]:
        values = [(one.epoch, value) for one in evaluations[first:] if (value := one.metrics.get(name)) is not None]
        return {"epoch": [epoch for epoch, _ in values], name: [value for _, value in values]}

    followed = {split: Followed(columns) for split in SPLIT_COLORS}
    for split, color in SPLIT_COLORS.items():
        source = followed[split].source
        shown.line("epoch", name, source=source, color=color, line_width=2, line_join="round")
        points = shown.scatter("epoch", name, source=source, color=color, size=5)
        where = split if split == SPAN else f"{split}, epoch"
        hover_on(shown, points, [(where, "@epoch"), (METRIC_TITLES[name], f"@{name}{{0.00000}}")], "mouse")

    def update(story: Story) -> str:
        last: dict[str, tuple[str, str]] = {}
        for split, color in SPLIT_COLORS.items():
            of_split = [one for _, one in story.evaluations if one.split == split]
            followed[split].update(of_split, story.versions["evaluations"])
            if of_split and (value := of_split[-1].metrics.get(name)) is not None:
                last[split] = color, f"{value:.5f}"
        return chips(last) if last else Nothing(NONE_YET)

    return plot_panel(f"{name}_by_epoch", shown, update)


def by_epoch(title: str) -> figure:
    """A figure over epochs or spans. Its vertical axis does not magnify differences that are too small to matter."""
    shown = plain_figure(
        title, x_range=DataRange1d(default_span=2.0, range_padding=0.03),
        y_range=DataRange1d(default_span=0.01, min_interval=0.002),
    )  # fmt: skip
    whole = AdaptiveTicker(base=10, mantissas=[1, 2, 5], min_interval=1, num_minor_ticks=0)
    shown.xaxis.update(ticker=whole, axis_label="epoch or span")
    return shown


def metric_table(story: Story) -> str:
    """All metrics of the last evaluation of each split as an HTML table, with a row for each label."""
    evaluations = [one for _, one in story.evaluations]
    last = {one.split: one for one in evaluations}
    rows = [row for split in SPLIT_COLORS if split in last for row in _rows(last[split])]
    if not rows:
        return Nothing(NONE_YET)
    names = [name for name in OF_LABEL if any(name in metrics for _, metrics in rows)]
    cells = [(what, *(metric_text(name, metrics.get(name)) for name in names)) for what, metrics in rows]
    table = html_table(("last evaluation", *names), cells)
    spans = [one for one in evaluations if one.split == SPAN]
    if not spans:
        return table
    # A row for each of the last spans, with the metrics from before it was trained on.
    scored = [row for one in spans[-LAST:] for row in _rows(one)]
    cells = [(what, *(metric_text(name, metrics.get(name)) for name in names)) for what, metrics in scored]
    return table + html_table(("scored before training", *names), cells)


def _rows(one: Evaluated) -> list[tuple[str, Mapping[str, Any]]]:
    # Metrics may be whole numbers in JSON, such as an AUC of 1.
    values = {name: float(value) for name, value in one.metrics.items() if value is not None}
    common, by_label = of_labels(values)
    what = f"span {one.epoch}" if one.split == SPAN else f"{one.split}, epoch {one.epoch}"
    what += f", from example {one.from_example:,} on" if one.from_example else ""
    return [(f"{what}, {label}", of) for label, of in by_label.items()] or [(what, common)]
