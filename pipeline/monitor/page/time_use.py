"""Where the time goes: what training did, and what it waited for, as shares of the wall time, one above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.monitor.page.humanized import percent, short_duration
from pipeline.monitor.page.panel import Followed, Panel, SessionMarks, chips, plot_panel
from pipeline.monitor.page.story import Interval, Story
from pipeline.monitor.page.style import CAUSE_COLORS, axis_format, hover_on, over_run_time, plain_figure

ORDER = tuple(CAUSE_COLORS)


def time_use_panel() -> Panel:
    """The panel "Where the time goes"."""
    shown = over_run_time(plain_figure("share of the wall time of training", y_range=(0, 1)))
    shown.yaxis.formatter = axis_format("percent")
    followed = Followed(_columns)
    below = "zero"
    for cause in ORDER:
        shown.varea_step(
            "at", below, cause, step_mode="before", source=followed.source, color=CAUSE_COLORS[cause], fill_alpha=0.9
        )
        below = cause
    # Areas have no points to hover on.
    edge = shown.line("at", below, source=followed.source, line_alpha=0)
    hover_on(shown, edge, [("run time", "@at{00:00:00}"), ("", "@told")])
    marks = SessionMarks(shown)

    def update(story: Story) -> str:
        followed.update(story.intervals, story.versions["intervals"])
        marks.update(story)
        return time_use_legend(story) if story.intervals else "!No block has been trained yet."

    return plot_panel("time_use", [shown], update)


def time_use_legend(story: Story) -> str:
    """Shares of the last seconds, or of the whole session once it has ended, the largest first, as a legend."""
    if story.ended:
        spent, period = dict(story.ended.waits), f"{short_duration(story.ended.seconds)} of the last session:"
    else:
        lately = story.lately()
        spent = dict(lately.waits) if lately else {}
        period = f"last {short_duration(lately.seconds)}:" if lately else ""
    shares = shares_of(spent)
    largest = sorted(((share, cause) for cause, share in shares.items() if share >= 0.005), reverse=True)
    return chips({period: ("", "")} | {cause: (CAUSE_COLORS[cause], percent(share)) for share, cause in largest})


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Share of each cause in the sum of all; "train" is not waiting."""
    total = sum(seconds.values())
    return {cause: value / total for cause, value in seconds.items()} if total else {}


def _columns(intervals: Sequence[Interval], first: int) -> dict[str, list[Any]]:
    """Columns with the upper edge of each cause's area at the end of each interval."""
    columns: dict[str, list[Any]] = {name: [] for name in ("at", "told", "zero", *ORDER)}
    for interval in intervals[first:]:
        total, height = max(interval.seconds, sum(interval.waits.values())), 0.0
        heights = []
        for cause in ORDER:
            height += interval.waits.get(cause, 0.0) / total
            heights.append(min(height, 1.0))
        shares = sorted(((seconds / total, cause) for cause, seconds in interval.waits.items()), reverse=True)
        told = ", ".join(f"{cause} {percent(share)}" for share, cause in shares[:4] if share >= 0.005)
        # The first area begins where its interval does.
        for end in (interval.begin, interval.end) if interval.begin == 0 else (interval.end,):
            columns["at"].append(end)
            columns["told"].append(told)
            columns["zero"].append(0.0)
            for cause, value in zip(ORDER, heights, strict=True):
                columns[cause].append(value)
    return columns
