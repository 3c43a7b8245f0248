"""Calibration and ROC of the last evaluation, from sums over bins of the predicted probability.

C bins
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, CustomJSTickFormatter, LogTicker
from bokeh.plotting import figure
from numpy.typing import NDArray

from pipeline.monitor.live.lines import Curve, Evaluated
from pipeline.monitor.page.humanized import percent, short_number
from pipeline.monitor.page.panel import Nothing, Panel, chips, plot_panel
from pipeline.monitor.page.style import INK, RUN_COLORS, axis_format, hover_on, plain_figure
from pipeline.monitor.story import Story

F64 = NDArray[np.float64]

SPLITS_IN_ORDER = ("test", "validation", "train")
MAX_LABELS = 4
LEAST_WEIGHT = 0.005
"""Share of all weight that a point of the calibration plot has at least: bins with less are joined."""
CURVE_HEIGHT = 300


def calibration_points(curve: Curve) -> tuple[F64, F64, F64]:
    """Mean prediction [C], mean label [C] and weight [C] of bins, by prediction. Bins of little weight are joined with
    their neighbours."""
    least = LEAST_WEIGHT * sum(curve.weight)
    points, sums = [], np.zeros(3)
    for values in zip(curve.weight, curve.predicted, curve.clicked, strict=True):
        sums = sums + values
        if sums[0] > max(least, 0.0):
            points.append(sums)
            sums = np.zeros(3)
    if sums[0] > 0:
        points = [*points[:-1], points[-1] + sums] if points else [sums]
    weight_C, predicted_C, clicked_C = np.array(points).reshape(-1, 3).T
    return predicted_C / weight_C, clicked_C / weight_C, weight_C


def roc_points(curve: Curve) -> tuple[F64, F64]:
    """Shares of the negatives and of the positives [C + 1] whose prediction is above each bin's edge, ascending."""
    clicked_C = np.array(curve.clicked)[::-1]
    negative_C = np.maximum(np.array(curve.weight)[::-1] - clicked_C, 0.0)
    return _cumulative(negative_C), _cumulative(clicked_C)


def _cumulative(values_C: F64) -> F64:
    total = float(values_C.sum())
    return np.concatenate(([0.0], np.cumsum(values_C) / total)) if total else np.linspace(0.0, 1.0, len(values_C) + 1)


def calibration_panel() -> Panel:
    """The panel "Calibration": the mean label over the mean prediction, on logarithmic axes."""
    shown = plain_figure("mean label", CURVE_HEIGHT, x_axis_type="log", y_axis_type="log")
    shown.xaxis.axis_label = "mean prediction"
    as_percent = "return Number((100 * tick).toPrecision(2)) + ' %'"
    for axis in (*shown.xaxis, *shown.yaxis):
        axis.update(
            formatter=CustomJSTickFormatter(code=as_percent), ticker=LogTicker(mantissas=[1, 3], desired_num_ticks=5)
        )

    def points(curve: Curve) -> dict[str, Any]:
        x_C, y_C, weight_C = calibration_points(curve)
        # A bin without a positive has no place on a logarithmic axis.
        some_C = (y_C > 0) & (x_C > 0)
        x_C, y_C, weight_C = x_C[some_C], y_C[some_C], weight_C[some_C]
        size_C = 4 + 12 * np.sqrt(weight_C / max(weight_C.max(initial=0.0), 1e-300))
        told = [f"{percent(y)} where {percent(x)} were predicted" for x, y in zip(x_C, y_C, strict=True)]
        return {"x": x_C, "y": y_C, "size": size_C, "told": told, "weight": [short_number(w) for w in weight_C]}

    def draw(source: ColumnDataSource, color: str) -> None:
        shown.line("x", "y", source=source, color=color, line_width=1.2, line_alpha=0.5)
        dots = shown.scatter("x", "y", size="size", source=source, color=color, fill_alpha=0.75, line_color=None)
        hover_on(shown, dots, [("", "@told"), ("weight", "@weight")], "mouse")

    def diagonal(drawn: list[dict[str, Any]]) -> tuple[float, float]:
        values = np.concatenate([np.concatenate((one["x"], one["y"])) for one in drawn])
        return (float(values.min()), float(values.max())) if len(values) else (0.01, 1.0)

    return _curve_panel("calibration", shown, points, draw, diagonal, "calibration")


def roc_panel() -> Panel:
    """The panel "ROC"."""
    shown = plain_figure("share of the positives above a threshold", CURVE_HEIGHT, x_range=(0, 1), y_range=(0, 1.005))
    shown.xaxis.axis_label = "share of the negatives above it"
    for axis in (*shown.xaxis, *shown.yaxis):
        axis.formatter = axis_format("percent")

    def points(curve: Curve) -> dict[str, Any]:
        x_C, y_C = roc_points(curve)
        return {"x": x_C, "y": y_C}

    def draw(source: ColumnDataSource, color: str) -> None:
        line = shown.line("x", "y", source=source, color=color, line_width=2.2)
        hover_on(shown, line, [("negatives", "@x{0.0%}"), ("positives", "@y{0.0%}")], "mouse")

    return _curve_panel("roc", shown, points, draw, lambda drawn: (0.0, 1.0), "auc")


def _curve_panel(
    name: str, shown: figure, points: Callable[[Curve], dict[str, Any]], draw: Callable[[ColumnDataSource, str], None],
    diagonal: Callable[[list[dict[str, Any]]], tuple[float, float]], metric: str,
) -> Panel:  # fmt: skip
    """A panel with a curve for each label, and the diagonal. `metric` is said beside them."""
    ideal = ColumnDataSource({"at": []})
    shown.line("at", "at", source=ideal, color=INK, line_dash="dashed", line_width=1)
    sources: list[ColumnDataSource] = []
    drawn: list[Evaluated] = []

    def update(story: Story) -> str:
        one = curves_of(story)
        if one is None:
            return Nothing("No evaluation yet, or none that has its curves.")
        curves = [curve for curve in one.curves if sum(curve.weight) > 0][:MAX_LABELS]
        if drawn != [one]:
            drawn[:] = [one]
            data = [points(curve) for curve in curves]
            for number, columns in enumerate(data):
                if number == len(sources):
                    sources.append(ColumnDataSource({column: [] for column in columns}))
                    draw(sources[number], RUN_COLORS[number])
                sources[number].data = columns
            ideal.data = {"at": list(diagonal(data))}
        said = {f"{one.split}, epoch {one.epoch}": ("", "")}
        for number, curve in enumerate(curves):
            value = one.metrics.get(f"{metric}_{curve.label}", one.metrics.get(metric) if number == 0 else None)
            text = "" if value is None else f"{metric.upper() if metric == 'auc' else metric} {value:.4f}"
            said[curve.label] = RUN_COLORS[number], text
        return chips(said)

    return plot_panel(name, [shown], update)


def curves_of(story: Story) -> Evaluated | None:
    """The last evaluation with curves: of the test, or else the validation split."""
    for split in SPLITS_IN_ORDER:
        for _, one in reversed(story.evaluations):
            if one.split == split and one.curves and any(sum(curve.weight) > 0 for curve in one.curves):
                return one
    return None
