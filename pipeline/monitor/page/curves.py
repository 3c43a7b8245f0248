"""Speed and loss over run time, and metrics by epoch or span."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.monitor.page.humanized import short_duration, short_number
from pipeline.monitor.page.plots import (
    BLUE,
    GREEN,
    SPLIT_COLORS,
    Curve,
    curve_plot,
    legend,
    number_axis,
    time_axis,
    whole_axis,
)
from pipeline.monitor.story import Lapse, Story
from pipeline.spans.passes import SPAN

METRICS = {
    "auc": ("AUC", "area under the ROC curve"), "logloss": ("Logloss", "mean cross-entropy, nats"),
    "ne": ("Normalized entropy", "logloss / that of always the mean label"),
    "calibration": ("Calibration", "mean prediction / mean label"), "rmse": ("RMSE", "root mean squared error"),
    "mae": ("MAE", "mean absolute error"),
}  # fmt: skip
"""Titles and axes of the metrics that are plotted: those of the first label."""
LEAST = 0.002
"""Minimum length of the axis of a metric, so that differences that are too small to matter look small."""


def speed_plot(story: Story, steps: Sequence[Lapse]) -> str:
    """Examples per second of training and evaluation over run time. `steps`: lapses of the bold line, which is a mean;
    the faint one has all lapses."""
    if not story.lapses:
        return ""
    curves = _two_lines("examples/s", GREEN, story, steps, lambda lapse: lapse.examples / lapse.seconds)
    mean, seconds = story.mean_speed()
    y = number_axis("examples/s", [value for _, value in curves[0].points], short_number, from_zero=True)
    said = (
        f"{short_number(mean)} examples/s of training and evaluation on average over {short_duration(seconds)}, start "
        "and commits included"
    )
    return f"<p>{said}</p>{curve_plot(curves, time_axis(story.lapses[-1].end), y, story.starts[1:])}"


def loss_plot(story: Story, steps: Sequence[Lapse]) -> str:
    """Mean loss of the training blocks over run time. `steps`: as for `speed_plot`."""
    curves = _two_lines("loss", BLUE, story, steps, lambda lapse: lapse.loss)
    if not curves[0].points:
        return ""
    tick = story.tick
    said = f"learning rate: {tick.lr_rows:.3g} for rows, {tick.lr_dense:.3g} for the dense part" if tick else ""
    y = number_axis("training loss", [value for _, value in curves[0].points], least=LEAST)
    return f"<p>{said}</p>{curve_plot(curves, time_axis(story.lapses[-1].end), y, story.starts[1:])}"


def _two_lines(
    name: str, color: str, story: Story, steps: Sequence[Lapse], value: Callable[[Lapse], float | None]
) -> list[Curve]:
    def points(lapses: Sequence[Lapse]) -> list[tuple[float, float]]:
        return [(lapse.end, found) for lapse in lapses if (found := value(lapse)) is not None]

    return [Curve(name, color, points(story.lapses), "faint"), Curve(name, color, points(steps), "bold")]


def metric_plots(story: Story) -> dict[str, str]:
    """A plot for each metric that was evaluated, by title, with a curve for each split."""
    plots = {}
    for metric, (title, label) in METRICS.items():
        curves = [
            Curve(split, color, points, "dotted")
            for split, color in SPLIT_COLORS.items()
            if (points := _points(story, split, metric))
        ]
        if curves:
            places = [point for curve in curves for point in curve.points]
            x = whole_axis("span" if [curve.name for curve in curves] == [SPAN] else "epoch", [at for at, _ in places])
            y = number_axis(label, [value for _, value in places], least=LEAST)
            last = {curve.name: (curve.color, f"{curve.points[-1][1]:.5f}") for curve in curves}
            plots[title] = legend(last) + curve_plot(curves, x, y)
    return plots


def _points(story: Story, split: str, metric: str) -> list[tuple[float, float]]:
    values = [(one.epoch, one.metrics.get(metric)) for one in story.evaluations if one.split == split]
    return [(float(epoch), value) for epoch, value in values if value is not None]
