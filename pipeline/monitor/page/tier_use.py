"""Tiers: where keys were found, rows that moved to and from the disk, and how full each tier is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pipeline.monitor.page.humanized import percent, short_number, short_size
from pipeline.monitor.page.panel import Followed, Nothing, Panel, SessionMarks, chips, meter, plot_panel, text_panel
from pipeline.monitor.page.story import Interval, Story
from pipeline.monitor.page.style import (
    BLUE,
    ORANGE,
    PURPLE,
    RED,
    TIER_COLORS,
    axis_format,
    hover_on,
    over_run_time,
    plain_figure,
)  # fmt: skip

FOUND = ("device", "host", "disk", "new")
RATES = {"read from disk": ("read", RED), "written to disk": ("written", PURPLE)}


def found_panel() -> Panel:
    """The panel "Where keys were found": shares of the unique keys of blocks."""
    shown = over_run_time(plain_figure("share of the blocks' unique keys", y_range=(0, 1)))
    shown.yaxis.formatter = axis_format("percent")
    followed = Followed(_found_columns)
    below = "zero"
    for tier in FOUND:
        shown.varea_step(
            "at", below, tier, step_mode="before", source=followed.source, color=TIER_COLORS[tier], fill_alpha=0.9
        )
        below = tier
    edge = shown.line("at", below, source=followed.source, line_alpha=0)
    hover_on(shown, edge, [("run time", "@at{00:00:00}"), ("", "@told")])
    marks = SessionMarks(shown)

    def update(story: Story) -> str:
        followed.update(story.intervals, story.versions["intervals"])
        marks.update(story)
        counts = _counts(story)
        keys = sum(counts.values())
        if not keys:
            return Nothing("No block has been planned yet.")
        return chips({tier: (TIER_COLORS[tier], percent(counts[tier] / keys)) for tier in FOUND})

    return plot_panel("found", [shown], update)


def disk_rows_panel() -> Panel:
    """The panel "Rows from and to the disk", per second."""
    shown = over_run_time(plain_figure("rows/s"))
    shown.yaxis.formatter = axis_format("short")
    shown.y_range.start = 0
    followed = Followed(_rate_columns)
    lines = [shown.line("at", c, source=followed.source, color=color, line_width=2) for c, color in RATES.values()]
    values = [(name, f"@{column}{{0,0}} rows/s") for name, (column, _) in RATES.items()]
    hover_on(shown, lines[0], [("run time", "@at{00:00:00}"), *values])
    marks = SessionMarks(shown)

    def update(story: Story) -> str:
        followed.update(story.intervals, story.versions["intervals"])
        marks.update(story)
        moved = counted(story)
        if not moved:
            return Nothing("No block has been planned yet.")
        seconds = sum(i.seconds for i in moved)
        means = {name: sum(_rows(i)[column] for i in moved) / seconds for name, (column, _) in RATES.items()}
        return chips({name: (color, f"{short_number(means[name])}/s") for name, (_, color) in RATES.items()})

    return plot_panel("disk_rows", [shown], update)


def fill_panel() -> Panel:
    """The panel "How full the tiers are"."""

    def text(story: Story) -> str:
        begin, tick = story.begin, story.tick or (story.intervals[-1].tick if story.intervals else None)
        if not begin or not tick:
            return '<p class="nothing">No tick yet.</p>'
        rows = begin.row_bytes
        tiers = (
            ("device", tick.device_rows, begin.device_rows, BLUE),
            ("host", tick.host_rows, begin.host_rows, ORANGE),
        )
        lines = [
            meter(tier, used / cap if cap else 0.0, color, f"{short_number(used)} of {short_number(cap)} rows")
            for tier, used, cap, color in tiers
        ]
        used, cap = tick.disk_bytes, begin.disk_cap_bytes
        lines.append(meter("disk", used / cap if cap else 0.0, RED, f"{short_size(used)} of {short_size(cap)}"))
        return f"{''.join(lines)}<p>a row has {rows} bytes; device {short_size(rows * begin.device_rows)}, host " + (
            f"{short_size(rows * begin.host_rows)}</p>"
        )

    return text_panel("fill", text)


def counted(story: Story) -> list[Interval]:
    """The last seconds, or all intervals once the session has ended, as far as counts of moves are known."""
    lately = None if story.ended else story.lately()
    if lately and lately.moves and lately.moves.get("keys"):
        return [lately]
    return [i for i in story.intervals if i.moves and i.moves.get("keys")]


def _counts(story: Story) -> dict[str, int]:
    """Keys found in each tier."""
    sums = (sum(counts) for counts in zip(*map(_found, counted(story)), strict=True))
    return dict(zip(FOUND, sums, strict=False))


def _rows(interval: Interval) -> dict[str, float]:
    moves = interval.moves or {}
    to_disk = moves.get("device_to_disk", 0) + moves.get("host_to_disk", 0) - moves.get("unchanged", 0)
    return {"read": moves.get("disk_hits", 0), "written": max(to_disk, 0)}


def _rate_columns(intervals: Sequence[Interval], first: int) -> dict[str, list[float]]:
    known = [i for i in intervals[first:] if i.moves is not None]
    rows = [(_rows(i), i.seconds) for i in known]
    rates = {column: [of[column] / seconds for of, seconds in rows] for column, _ in RATES.values()}
    return {"at": [i.end for i in known], **rates}


def _found_columns(intervals: Sequence[Interval], first: int) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in ("at", "zero", "told", *FOUND)}
    begun = any(sum(_found(interval)) for interval in intervals[:first])
    for interval in intervals[first:]:
        counts = _found(interval)
        total = sum(counts)
        if not total:
            continue
        told = ", ".join(f"{tier} {percent(count / total)}" for tier, count in zip(FOUND, counts, strict=True))
        # The first area begins with its interval.
        for at in (interval.end,) if begun else (interval.begin, interval.end):
            columns["at"].append(at)
            columns["zero"].append(0.0)
            columns["told"].append(told)
            for tier, height in zip(FOUND, accumulate(counts), strict=True):
                columns[tier].append(height / total)
        begun = True
    return columns


def _found(interval: Interval) -> list[int]:
    """Keys found in each tier, in the order of `FOUND`."""
    moves = interval.moves or {}
    return [moves.get("new" if tier == "new" else f"{tier}_hits", 0) for tier in FOUND]
