"""Calibration plot of the last evaluation, from sums over bins of the predicted probability.

C bins
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, CustomJSTickFormatter, LogTicker
from numpy.typing import NDArray

from pipeline.monitor.live.lines import Curve, Evaluated
from pipeline.monitor.page.humanized import percent, short_number
from pipeline.monitor.page.panel import Nothing, Panel, chips, plot_panel
from pipeline.monitor.page.style import INK, RUN_COLORS, hover_on, plain_figure
from pipeline.monitor.story import Story

F64 = NDArray[np.float64]

SPLITS_IN_ORDER = ("test", "validation", "span", "train")
MAX_LABELS = 4
LEAST_WEIGHT = 0.005
"""Minimum share of the total weight per point of the calibration plot; bins with less are merged."""
CURVE_HEIGHT = 300


def calibration_points(curve: Curve) -> tuple[F64, F64, F64]:
    """Mean prediction [C], mean label [C] and weight [C] of bins, in order of prediction. Bins with little weight are
    merged with their neighbours."""
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


def calibration_panel() -> Panel:
    """The panel "Calibration": mean label against mean prediction, on logarithmic axes."""
    shown = plain_figure("mean label", CURVE_HEIGHT, x_axis_type="log", y_axis_type="log")
    shown.xaxis.axis_label = "mean prediction"
    as_percent = "return Number((100 * tick).toPrecision(2)) + ' %'"
    for axis in (*shown.xaxis, *shown.yaxis):
        axis.update(
            formatter=CustomJSTickFormatter(code=as_percent), ticker=LogTicker(mantissas=[1, 3], desired_num_ticks=5)
        )

    def points(curve: Curve) -> dict[str, Any]:
        x_C, y_C, weight_C = calibration_points(curve)
        # A logarithmic axis cannot show a bin without positives.
        some_C = (y_C > 0) & (x_C > 0)
        x_C, y_C, weight_C = x_C[some_C], y_C[some_C], weight_C[some_C]
        size_C = 4 + 12 * np.sqrt(weight_C / max(weight_C.max(initial=0.0), 1e-300))
        note = [f"{percent(y)} where {percent(x)} were predicted" for x, y in zip(x_C, y_C, strict=True)]
        return {"x": x_C, "y": y_C, "size": size_C, "note": note, "weight": [short_number(w) for w in weight_C]}

    ideal = ColumnDataSource({"at": []})
    shown.line("at", "at", source=ideal, color=INK, line_dash="dashed", line_width=1)
    sources: list[ColumnDataSource] = []
    drawn: list[Evaluated] = []

    def draw(one: Evaluated, curves: Sequence[Curve]) -> None:
        drawn[:] = [one]
        data = [points(curve) for curve in curves]
        for number, columns in enumerate(data):
            if number == len(sources):
                source, color = ColumnDataSource({column: [] for column in columns}), RUN_COLORS[number]
                sources.append(source)
                shown.line("x", "y", source=source, color=color, line_width=1.2, line_alpha=0.5)
                dots = shown.scatter(
                    "x", "y", size="size", source=source, color=color, fill_alpha=0.75, line_color=None
                )
                hover_on(shown, dots, [("", "@note"), ("weight", "@weight")], "mouse")
            sources[number].data = columns
        values = np.concatenate([np.concatenate((columns["x"], columns["y"])) for columns in data])
        ideal.data = {"at": [values.min(initial=1.0), values.max(initial=0.01)]}

    def update(story: Story) -> str:
        one = evaluated_with_curves(story)
        if one is None:
            return Nothing("No evaluation yet, or none that has its curves.")
        curves = [curve for curve in one.curves if sum(curve.weight) > 0][:MAX_LABELS]
        if drawn != [one]:
            draw(one, curves)
        said = {f"{one.split}, epoch {one.epoch}": ("", "")}
        for number, curve in enumerate(curves):
            value = one.metrics.get(
                f"calibration_{curve.label}", one.metrics.get("calibration") if number == 0 else None
            )
            said[curve.label] = RUN_COLORS[number], "" if value is None else f"{value:.4f}"
        return chips(said)

    return plot_panel("calibration", shown, update)


def evaluated_with_curves(story: Story) -> Evaluated | None:
    """The last evaluation with curves, of the first split in `SPLITS_IN_ORDER` that has one."""
    for split in SPLITS_IN_ORDER:
        for _, one in reversed(story.evaluations):
            if one.split == split and one.curves and any(sum(curve.weight) > 0 for curve in one.curves):
                return one
    return None
