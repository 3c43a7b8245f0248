"""Cards of a page with plots: speed and loss over run time, metrics by epoch or span, and the use of time and tiers
(what training did, what it waited for, how busy each stage was, where keys were found)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from pipeline.monitor.live.waits import what_binds
from pipeline.monitor.page.plots import (
    BLUE,
    CAUSE_COLORS,
    GREEN,
    SPLIT_COLORS,
    STAGE_COLORS,
    TIER_COLORS,
    Curve,
    area_plot,
    bar,
    curve_plot,
    legend,
    number_axis,
    time_axis,
    whole_axis,
)
from pipeline.monitor.report import percent, short_duration, short_number
from pipeline.monitor.story import Lapse, Story, total
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


def time_use(story: Story, steps: Sequence[Lapse]) -> str:
    """Sentence on what limits the speed; shares of the last seconds, or of the session if it has ended; and shares
    in each of the `steps`."""
    if not steps:
        return ""
    spent, seconds, _ = _lately(story)
    period = short_duration(seconds)
    said = what_binds(spent, seconds) if seconds else "no block of this session is done yet"
    parts = {cause: (CAUSE_COLORS[cause], percent(share)) for cause, share in _largest(shares_of(spent))}
    ends, shares = [lapse.end for lapse in steps], [shares_of(lapse.waits) for lapse in steps]
    x, y = time_axis(ends[-1]), number_axis("share of the wall time", [0.0, 1.0], percent)
    return (
        f"{f'<p><b>{said[:1].upper()}{escape(said[1:])}.</b></p>' if said else ''}"
        f"{legend({f'{period} of the last session:' if story.ended else f'last {period}:': ('', '')} | parts)}"
        f"{area_plot(CAUSE_COLORS, ends, shares, x, y, story.starts[1:])}"
    )


def stage_use(story: Story) -> str:
    """Bars with the share of time in which each stage was busy, and a bar with the tiers in which keys were found."""
    _, seconds, stages = _lately(story)
    if not seconds:
        return ""
    busy = [(stage, stages[stage] / seconds) for stage in STAGE_COLORS if stages.get(stage)]
    bars = "".join(_meter(stage, STAGE_COLORS[stage], share) for stage, share in busy)
    period = "the last session" if story.ended else "the last seconds"
    return f"{bars}<p>Share of {period} in which a stage was busy.</p>{_found(story)}"


def _found(story: Story) -> str:
    lately = story.lately()
    moves = lately.moves if lately and not story.ended else total(lapse.moves for lapse in story.lapses)
    found = shares_of({tier: moves.get("new" if tier == "new" else f"{tier}_hits", 0) for tier in TIER_COLORS})
    if not found:
        return ""
    entries = {tier: (TIER_COLORS[tier], percent(share)) for tier, share in found.items()}
    parts = bar([(TIER_COLORS[tier], share) for tier, share in found.items()])
    return f"<h3>Where unique keys were found</h3>{parts}{legend(entries)}"


def _meter(label: str, color: str, share: float) -> str:
    parts = bar([(color, min(share, 1.0))])
    return f'<div class="meter"><span>{escape(label)}</span>{parts}<b>{percent(share)}</b></div>'


def _lately(story: Story) -> tuple[Mapping[str, float], float, Mapping[str, float]]:
    """Seconds by cause, total seconds, and seconds by stage, over the last seconds or over a session that has ended."""
    if story.ended:
        return story.ended.waits, story.ended.seconds, story.tick.stages if story.tick else {}
    lately = story.lately()
    return (lately.waits, lately.seconds, lately.stages) if lately else ({}, 0.0, {})


def shares_of(amounts: Mapping[str, float]) -> dict[str, float]:
    """Share of each part in the total; empty if the total is 0."""
    whole = sum(amounts.values())
    return {part: value / whole for part, value in amounts.items()} if whole else {}


def _largest(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """Parts and their shares, largest first, without negligible ones."""
    return sorted(((part, share) for part, share in shares.items() if share >= 0.005), key=lambda pair: -pair[1])
