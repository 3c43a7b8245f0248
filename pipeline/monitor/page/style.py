"""Style of plots: a thing has the same colour on all plots, and colours are distinct for colour-blind readers.

Colours follow Okabe and Ito, Color Universal Design (2008). None is very light or dark, so all are readable on light
and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import (
    AdaptiveTicker,
    BasicTickFormatter,
    CompositeTicker,
    CustomJSTickFormatter,
    HoverTool,
    NumeralTickFormatter,
    Span,
)  # fmt: skip
from bokeh.plotting import figure

GREEN, BLUE, ORANGE, RED = "#009e73", "#1a7fc1", "#e69f00", "#d55e00"
PURPLE, SKY, GREY = "#cc79a7", "#56b4e9", "#9aa3ad"
INK = "#727e8a"
"""Colour of axes and titles."""
LINES = "rgba(128, 138, 150, 0.2)"
"""Colour of grids."""

CAUSE_COLORS = {
    "train": GREEN, "read": SKY, "dedup": "#3b7ea1", "plan": "#c9b400", "disk": RED, "host copy": ORANGE,
    "device copy": BLUE, "other workers": PURPLE, "hand-over": "#b9c0c8", "commit": "#6f5bb5", "evaluation": "#b5a4e0",
    "compile": "#8c5a2b", "start": "#d9c7a3", "end": "#7d8790", "unattributed": "#a9b1ba",
}  # fmt: skip
"""Colours of training and of the causes of its waits."""
STAGE_COLORS = {
    "read": SKY, "dedup": "#3b7ea1", "unite": PURPLE, "scan": "#8c5a2b", "plan": "#c9b400", "prefetch": RED,
    "upload": BLUE, "train": GREEN, "write_back": "#6f5bb5",
}  # fmt: skip
"""A stage has the colour of the wait that it causes; a prefetch waits mostly for the disk."""
TIER_COLORS = {"device": BLUE, "host": ORANGE, "disk": RED, "new": GREY}
SPLIT_COLORS = {"train": GREY, "validation": BLUE, "test": RED, "span": GREEN}
RUN_COLORS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, "#6f5bb5", "#8c5a2b")
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
HEIGHT = 230

SHORT_TICKS = """
const size = Math.abs(tick)
for (const [scale, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]])
    if (size >= scale) return Number((tick / scale).toPrecision(3)) + unit
return String(Number(tick.toPrecision(3)))
"""
SIZE_TICKS = """
let value = tick
for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(value) < 1024 || unit == "TiB") return Number(value.toPrecision(3)) + " " + unit
    value /= 1024
}
"""


def plain_figure(title: str, height: int = HEIGHT, **options: Any) -> figure:
    """A figure without chrome, as wide as its card. `title`: quantity and unit of the vertical axis, shown horizontally
    above the plot."""
    # With gestures disabled, a finger scrolls the page.
    shown = figure(
        height=height, sizing_mode="stretch_width", toolbar_location=None, tools="", title=title, min_border_right=12,
        output_backend="canvas", background_fill_alpha=0, border_fill_alpha=0, outline_line_color=None, **options,
    )  # fmt: skip
    # The first pixel column of a canvas keeps what was drawn before the canvas had its final width.
    shown.styles = {"clip-path": "inset(-400px -400px -400px 1px)"}
    title_model: Any = shown.title
    title_model.update(
        text_font=FONT, text_font_size="12px", text_font_style="normal", text_color=INK, align="left", offset=0
    )
    for axis in (*shown.xaxis, *shown.yaxis):
        axis.update(
            axis_line_color=None, major_tick_line_color=None, minor_tick_line_color=None, major_label_text_font=FONT,
            major_label_text_font_size="11px", major_label_text_color=INK, axis_label_text_font=FONT,
            axis_label_text_font_size="11px", axis_label_text_font_style="normal", axis_label_text_color=INK,
        )  # fmt: skip
    shown.grid.grid_line_color = LINES
    shown.xgrid.grid_line_color = None
    return shown


def hover_on(shown: figure, renderer: Any, tooltips: Sequence[tuple[str, str]], mode: str = "vline") -> None:
    """Show values at the pointer: anywhere above or below a point, or, with `mode` "mouse", on a mark."""
    shown.add_tools(HoverTool(tooltips=list(tooltips), mode=mode, renderers=[renderer], attachment="horizontal"))


def stack_areas(shown: figure, source: Any, colors: Mapping[str, str]) -> None:
    """Draw columns of a source as areas over its column `at`, each starting at the previous column, the first at
    `zero`. Column `note` contains the hover text. `colors`: by column."""
    below = "zero"
    for column, color in colors.items():
        shown.varea_step("at", below, column, step_mode="before", source=source, color=color, fill_alpha=0.9)
        below = column
    # Areas have no points to hover on.
    edge = shown.line("at", below, source=source, line_alpha=0)
    hover_on(shown, edge, [("run time", "@at{00:00:00}"), ("", "@note")])


def over_run_time(shown: figure) -> figure:
    """Make the horizontal axis show run time, in hours, minutes and seconds."""
    seconds = AdaptiveTicker(
        base=60, mantissas=[1, 2, 5, 10, 15, 20, 30], min_interval=1, max_interval=1800, num_minor_ticks=0
    )
    hours = AdaptiveTicker(
        base=86400,
        mantissas=[3600, 7200, 10800, 21600, 43200],
        min_interval=3600,
        max_interval=43200,
        num_minor_ticks=0,
    )
    days = AdaptiveTicker(base=10, mantissas=[86400, 172800, 432000], min_interval=86400, num_minor_ticks=0)
    ticker = CompositeTicker(tickers=[seconds, hours, days], desired_num_ticks=5)
    shown.xaxis.update(ticker=ticker, formatter=NumeralTickFormatter(format="00:00:00"), axis_label="run time")
    # A shorter range would need ticks within a second.
    shown.x_range.update(start=0, range_padding=0.01, min_interval=10)
    return shown


def size_axis(axis: Any) -> None:
    """Make an axis show sizes in bytes."""
    powers = AdaptiveTicker(base=1024, mantissas=[2**n for n in range(10)], desired_num_ticks=5, num_minor_ticks=0)
    axis.update(ticker=powers, formatter=CustomJSTickFormatter(code=SIZE_TICKS))


def axis_format(kind: str) -> Any:
    """Formatter of an axis: "percent", "short" (k, M, G) or "plain"."""
    if kind == "percent":
        return NumeralTickFormatter(format="0%")
    if kind == "plain":
        return BasicTickFormatter(use_scientific=False)
    return CustomJSTickFormatter(code=SHORT_TICKS)


def mark_at(shown: figure, at: float) -> None:
    """Mark the start of a session."""
    shown.add_layout(Span(location=at, dimension="height", line_color=INK, line_dash="dotted", line_width=1))
