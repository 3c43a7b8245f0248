"""Timeline of the last sampled blocks: a lane for each stage, and lines from each call to the call that it waited
for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, FactorRange

from pipeline.monitor.live.lines import BlockSpans
from pipeline.monitor.page.humanized import short_duration
from pipeline.monitor.page.panel import Nothing, Panel, plot_panel
from pipeline.monitor.page.style import FONT, INK, STAGE_COLORS, hover_on, plain_figure
from pipeline.monitor.story import Story
from pipeline.stages import STAGES

LANE_HEIGHT = 30


class Call(NamedTuple):
    """A call of a stage, with times in seconds since the session started."""

    block: int
    split: str
    stage: str
    start: float
    stop: float
    after: str
    """Stage that it waited for last; empty if it waited for none."""
    after_stop: float
    """Time when that stage finished."""


def calls_of(blocks: Sequence[BlockSpans]) -> list[Call]:
    """All calls of some blocks, in order of start."""
    return sorted((Call(b.number, b.split, *span) for b in blocks for span in b.spans), key=lambda call: call.start)


def stage_lanes_panel() -> Panel:
    """The panel "Timeline"."""
    lanes, edges = ColumnDataSource(), ColumnDataSource()
    shown = plain_figure("", 9 * LANE_HEIGHT + 50, y_range=FactorRange(factors=list(reversed(STAGES))))
    shown.xaxis.axis_label = "seconds since the session began"
    shown.x_range.range_padding = 0.01
    shown.segment("x0", "y0", "x1", "y1", source=edges, color=INK, line_width=1, line_alpha=0.45)
    shown.scatter("x1", "y1", source=edges, color=INK, size=3.5, fill_alpha=0.7, line_color=None)
    bars = shown.hbar(
        "stage", height=0.62, left="start", right="stop", source=lanes, fill_color="color", fill_alpha="alpha",
        line_color=None, border_radius=2, hover_line_color=INK,
    )  # fmt: skip
    shown.text(
        "middle", "stage", text="number", source=lanes, text_align="center",
        text_baseline="middle", text_color="#ffffff", text_font_size="10px", text_font=value(FONT),
    )  # fmt: skip
    hover_on(
        shown, bars, [("", "@stage of block @block (@split)"), ("took", "@took"), ("waited for", "@waited")], "mouse"
    )

    drawn: list[BlockSpans] = []

    def update(story: Story) -> str:
        if story.blocks != drawn:
            drawn[:] = story.blocks
            calls = calls_of(story.blocks)
            stages = [stage for stage in STAGES if any(call.stage == stage for call in calls)]
            lanes.data, edges.data = _lanes(calls), _edges(calls)
            shown.y_range.update(factors=list(reversed(stages)))
            shown.height = len(stages) * LANE_HEIGHT + 60
        if not drawn:
            return Nothing("No block has been sampled yet.")
        return "<p>A block is a group of batches; the number on a bar is that of its block.</p>"

    return plot_panel("timeline", shown, update)


def _lanes(calls: Sequence[Call]) -> dict[str, list[object]]:
    whole = max((c.stop for c in calls), default=0.0) - min((c.start for c in calls), default=0.0)
    return {
        "stage": [c.stage for c in calls],
        "start": [c.start for c in calls],
        "stop": [c.stop for c in calls],
        "middle": [(c.start + c.stop) / 2 for c in calls],
        # Numbers wider than their bar are not shown.
        "number": [str(c.block) if c.stop - c.start > 0.035 * whole else "" for c in calls],
        "block": [c.block for c in calls],
        "split": [c.split for c in calls],
        "color": [STAGE_COLORS.get(c.stage, INK) for c in calls],
        "alpha": [0.95 if c.block % 2 else 0.7 for c in calls],
        "took": [short_duration(c.stop - c.start) for c in calls],
        "waited": [_waited(c) for c in calls],
    }


def _waited(call: Call) -> str:
    if not call.after:
        return "nothing"
    return f"{call.after}, which was done {short_duration(max(call.start - call.after_stop, 0.0))} before"


def _edges(calls: Sequence[Call]) -> dict[str, list[object]]:
    first = min((c.start for c in calls), default=0.0)
    drawn = [c for c in calls if c.after in STAGE_COLORS and c.after_stop >= first]
    return {
        "x0": [c.after_stop for c in drawn], "y0": [c.after for c in drawn],
        "x1": [c.start for c in drawn], "y1": [c.stage for c in drawn],
    }  # fmt: skip
