"""Plots as HTML: SVG stretched to the width of its container, with the texts of the axes next to it, so that these have
the same size on every screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Literal, NamedTuple

from pipeline.monitor.progress import clock_time

SIZE = 1000
"""Width and height of a plot in its own units; a curve needs no finer ones."""
MAX_POINTS = 500
MAX_DOTS = 40
"""Number of points of a curve up to which each is marked, with its value as a tooltip."""
MOST_TICKS = 5
CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
"""Distances of ticks in seconds; longer ones are days."""
DAY = 86_400

Points = Sequence[tuple[float, float]]
Style = Literal["bold", "faint", "dotted"]
"""Style of a line. "dotted": bold, and its points are marked, if they are few."""

# Okabe and Ito, Color Universal Design (2008): distinct for colour-blind readers, readable on light and dark.
GREEN, BLUE, ORANGE, RED = "#009e73", "#1a7fc1", "#e69f00", "#d55e00"
PURPLE, SKY, GREY = "#cc79a7", "#56b4e9", "#9aa3ad"

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


class Axis(NamedTuple):
    """Range of an axis and its ticks, from low to high."""

    label: str
    """Quantity and unit."""
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def share(self, value: float) -> float:
        """Position of a value, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


class Curve(NamedTuple):
    """A line through points, in order."""

    name: str
    color: str
    points: Points
    style: Style


def number_axis(
    label: str, values: Sequence[float], show: Callable[[float], str] | None = None, from_zero: bool = False,
    least: float = 1e-9,
) -> Axis:  # fmt: skip
    """Axis around some values. `show`: text of a tick (default: as many decimals as the ticks need). `least`: the axis
    is at least this long."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    largest = max(abs(low), abs(high))
    least = max(least, 1e-4 * largest)
    if from_zero:
        low, high = 0.0, max(high, least)
    elif high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    step = round_step((high - low) / MOST_TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    style = f".{max(0, -math.floor(math.log10(step) + 1e-9))}f" if largest < 1e6 else ".6g"
    ticks = [(n * step, show(n * step) if show else format(n * step, style)) for n in range(first, last + 1)]
    return Axis(label, first * step, last * step, ticks)


def time_axis(end: float) -> Axis:
    """Axis of run time, in seconds from 0 to `end`."""
    end = max(end, 10.0)
    step = next((step for step in CLOCK_STEPS if end / step <= MOST_TICKS), None)
    step = step or DAY * max(1, math.ceil(round_step(end / DAY / MOST_TICKS)))
    ticks = [(float(at), clock_time(at)) for at in range(0, int(end) + 1, step)]
    return Axis("run time, min:s" if end < 3600 else "run time, h:min:s", 0.0, end, ticks)


def whole_axis(label: str, values: Sequence[float]) -> Axis:
    """Axis of whole numbers, such as epochs."""
    low, high = math.floor(min(values, default=1)), math.ceil(max(values, default=1))
    if low == high:
        low, high = low - 1, high + 1
    step = max(1, math.ceil(round_step((high - low) / MOST_TICKS)))
    return Axis(label, low, high, [(float(at), f"{at:,}") for at in range(-(-low // step) * step, high + 1, step)])


def round_step(size: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `size`."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= size * (1 - 1e-9))


def curve_plot(curves: Sequence[Curve], x: Axis, y: Axis, marks: Sequence[float] = ()) -> str:
    """Plot of curves. `marks`: positions of vertical lines, such as starts of sessions."""
    return _plot(x, y, _marks(x, marks) + "".join(_curve(curve, x, y) for curve in curves))


def area_plot(
    colors: Mapping[str, str], ends: Sequence[float], shares: Sequence[Mapping[str, float]], x: Axis, y: Axis,
    marks: Sequence[float] = (),
) -> str:  # fmt: skip
    """Plot of shares that add up to 1, as areas in these colours, the first at the bottom. `ends`: where each of the
    `shares` ends; it begins where the previous one ended, the first at the start of the axis."""
    heights = [[*accumulate(of.get(part, 0.0) for part in colors)] for of in shares]
    areas = []
    # The highest area is drawn first, down to the axis, and the others on top of it.
    for number, (part, color) in reversed([*enumerate(colors.items())]):
        if any(of.get(part, 0.0) >= 0.002 for of in shares):
            edge = "".join(
                f"V{_down(y, height[number])}H{_right(x, end)}" for end, height in zip(ends, heights, strict=True)
            )
            areas.append(f'<path fill="{color}" d="M0 {SIZE}{edge}V{SIZE}Z"><title>{escape(part)}</title></path>')
    return _plot(x, y, "".join(areas) + _marks(x, marks))


def bar(shares: Sequence[tuple[str, float]]) -> str:
    """A bar with parts of these colours and shares of its width."""
    parts = (f'<i style="width:{100 * share:.2f}%;background:{color}"></i>' for color, share in shares)
    return f'<span class="bar">{"".join(parts)}</span>'


def legend(entries: Mapping[str, tuple[str, str]]) -> str:
    """A legend: for each name, its colour (if any) and a text, such as a share."""
    found = (
        f"<span>{dot(color) if color else ''}{escape(name)} <b>{escape(text)}</b></span>"
        for name, (color, text) in entries.items()
    )
    return f'<p class="legend">{"".join(found)}</p>'


def dot(color: str) -> str:
    """A dot in this colour."""
    return f'<i style="background:{color}"></i>'


def _curve(curve: Curve, x: Axis, y: Axis) -> str:
    places = [(_right(x, at), _down(y, value)) for at, value in _some(curve.points)]
    line = (
        f'<polyline class="{curve.style}" stroke="{curve.color}" points="{" ".join(f"{a},{b}" for a, b in places)}"/>'
    )
    if curve.style != "dotted" or len(curve.points) > MAX_DOTS:
        return line
    dots = (
        f'<path d="M{a} {b}h0"><title>{escape(curve.name)}, {at:g}: {value:.5f}</title></path>'
        for (a, b), (at, value) in zip(places, curve.points, strict=True)
    )
    return f'{line}<g class="dots" stroke="{curve.color}">{"".join(dots)}</g>'


def _some(points: Points) -> Points:
    """At most MAX_POINTS of these points, at equal distances, with the last one."""
    every = -(-len(points) // MAX_POINTS) or 1
    return points[(len(points) - 1) % every :: every] if points else points


def _marks(x: Axis, marks: Sequence[float]) -> str:
    places = sorted({_right(x, at) for at in marks})
    return f'<path class="marks" d="{"".join(f"M{place} 0V{SIZE}" for place in places)}"/>' if places else ""


def _plot(x: Axis, y: Axis, inside: str) -> str:
    """A figure with axes; `inside`: what is drawn over the grid."""
    grid = "".join(f"M0 {_down(y, value)}H{SIZE}" for value, _ in y.ticks)
    return (
        f'<figure><figcaption>{escape(y.label)}</figcaption><div class="y">{"".join(_texts(y, "bottom"))}</div>'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" aria-label="{escape(y.label)}">'
        f'<path class="grid" d="{grid}"/>{inside}</svg>'
        f'<div class="x">{"".join(_texts(x, "left"))}</div><p class="unit">{escape(x.label)}</p></figure>'
    )


def _texts(axis: Axis, side: str) -> Iterator[str]:
    for value, text in axis.ticks:
        yield f'<span style="{side}:{100 * axis.share(value):.1f}%">{escape(text)}</span>'


def _right(x: Axis, value: float) -> int:
    return round(SIZE * x.share(value))


def _down(y: Axis, value: float) -> int:
    return round(SIZE * (1 - y.share(value)))
