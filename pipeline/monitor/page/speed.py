"""Speed and loss over run time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.monitor.page.humanized import short_duration, short_number
from pipeline.monitor.page.panel import Followed, Nothing, Panel, lapses_panel
from pipeline.monitor.page.style import BLUE, GREEN, axis_format, hover_on, over_run_time, plain_figure
from pipeline.monitor.story import Lapse, Story, just_before

RATE_SECONDS = 15.0
"""Averaging period of the bold lines, in seconds; the faint lines are single values. A long run has a longer period."""


CURVES = {
    "speed": ("examples/s", "No block is done yet.", GREEN, "short"),
    "loss": ("training loss, nats", "No block has been trained yet.", BLUE, "plain"),
}
"""Title, text if there are no values, colour and axis of each curve. The curves are examples per second (training and
evaluation) and mean cross-entropy of training blocks."""


def curve_panel(name: str) -> Panel:
    """The panel of one of `CURVES`."""
    (title, nothing, color, kind), from_zero = CURVES[name], name == "speed"
    shown = over_run_time(plain_figure(title))
    shown.yaxis.formatter = axis_format(kind)
    if from_zero:
        shown.y_range.start = 0
    followed = Followed(partial(speed_columns, name))
    shown.line("at", "raw", source=followed.source, color=color, line_alpha=0.3, line_width=1)
    bold = shown.line("at", "smooth", source=followed.source, color=color, line_width=2.2, line_join="round")
    values = [(title, "@smooth{0,0}" if from_zero else "@smooth{0.0000}")]
    epoch = [("epoch", "@epoch, @split"), ("learning rate of rows", "@lr")]
    hover_on(shown, bold, [("run time", "@at{00:00:00}"), *values, *epoch])

    def line(story: Story) -> str:
        has_values = any((i.examples if name == "speed" else i.loss) for i in story.lapses)
        return _line(story, name) if has_values else Nothing(nothing)

    return lapses_panel(name, shown, followed, line)


def _line(story: Story, name: str) -> str:
    last = story.lapses[-1]
    if name == "speed":
        mean, seconds = story.mean_speed()
        return (
            f"<p>{short_number(mean)} examples/s of training and evaluation on average over {short_duration(seconds)}, "
            "start and commits included</p>"
        )
    rates = f"{last.tick.lr_rows:.3g} for rows, {last.tick.lr_dense:.3g} for the dense part"
    return f"<p>learning rate: {rates}</p>"


def speed_columns(name: str, lapses: Sequence[Lapse], first: int) -> dict[str, list[Any]]:
    """Columns of "speed" or "loss" for the lapses starting with number `first`: single values and means over some
    seconds."""
    columns: dict[str, list[Any]] = {column: [] for column in ("at", "raw", "smooth", "epoch", "split", "lr")}
    for number in range(first, len(lapses)):
        lapse = lapses[number]
        raw = lapse.examples / lapse.seconds if name == "speed" else lapse.loss
        columns["at"].append(lapse.end)
        columns["raw"].append(float("nan") if raw is None else raw)
        columns["smooth"].append(_smooth(lapses, number, name))
        columns["epoch"].append(lapse.tick.epoch + 1)
        columns["split"].append(lapse.tick.split)
        columns["lr"].append(f"{lapse.tick.lr_rows:.3g}")
    return columns


def _smooth(lapses: Sequence[Lapse], number: int, name: str) -> float:
    """Mean over a lapse and those just before it; losses are weighted by examples."""
    total, weight = 0.0, 0.0
    for lapse in just_before(lapses, number, RATE_SECONDS):
        if name == "speed":
            total, weight = total + lapse.examples, weight + lapse.seconds
        elif lapse.loss is not None:
            total, weight = total + lapse.loss * lapse.examples, weight + lapse.examples
    return total / weight if weight else float("nan")
