"""Where the time goes: what training did, and what it waited for, as shares of the wall time, one above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from pipeline.monitor.page.humanized import percent, short_duration
from pipeline.monitor.page.panel import Followed, Nothing, Panel, SessionMarks, chips, plot_panel
from pipeline.monitor.page.style import CAUSE_COLORS, axis_format, over_run_time, plain_figure, stack_areas
from pipeline.monitor.story import Lapse, Story, just_before

ORDER = tuple(CAUSE_COLORS)
SMOOTH_SECONDS = 5.0
"""Period over which shares are means."""


def time_use_panel() -> Panel:
    """The panel "Where the time goes"."""
    shown = over_run_time(plain_figure("share of the wall time of training", y_range=(0, 1)))
    shown.yaxis.formatter = axis_format("percent")
    followed = Followed(_columns)
    stack_areas(shown, followed.source, CAUSE_COLORS)
    marks = SessionMarks(shown)

    def update(story: Story) -> str:
        followed.update(story.lapses, story.versions["lapses"])
        marks.update(story)
        return time_use_legend(story) if story.lapses else Nothing("No block has been trained yet.")

    return plot_panel("time_use", [shown], update)


def time_use_legend(story: Story) -> str:
    """Shares of the last seconds, or of the whole session once it has ended, the largest first, as a legend."""
    if story.ended:
        spent, period = dict(story.ended.waits), f"{short_duration(story.ended.seconds)} of the last session:"
    else:
        lately = story.lately()
        spent = dict(lately.waits) if lately else {}
        period = f"last {short_duration(lately.seconds)}:" if lately else ""
    parts = {cause: (CAUSE_COLORS[cause], percent(share)) for cause, share in largest(shares_of(spent))}
    return chips({period: ("", "")} | parts)


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Share of each cause in the sum of all; "train" is not waiting."""
    total = sum(seconds.values())
    return {cause: value / total for cause, value in seconds.items()} if total else {}


def _columns(lapses: Sequence[Lapse], first: int) -> dict[str, list[Any]]:
    """Columns with the upper edge of each cause's area at the end of each lapse from number `first` on: means of
    some seconds, since what a block waited for is told when it is done."""
    columns: dict[str, list[Any]] = {name: [] for name in ("at", "told", "zero", *ORDER)}
    begun = any(sum(lapse.waits.values()) > 0 for lapse in lapses[:first])
    for number in range(first, len(lapses)):
        shares = shares_of(_spent_before(lapses, number))
        if not sum(shares.values()):
            continue
        told = ", ".join(f"{cause} {percent(share)}" for cause, share in largest(shares)[:4])
        # The first area begins with the run.
        for at in (lapses[number].end,) if begun else (0.0, lapses[number].end):
            columns["at"].append(at)
            columns["told"].append(told)
            columns["zero"].append(0.0)
            for cause, height in zip(ORDER, accumulate(shares.get(cause, 0.0) for cause in ORDER), strict=True):
                columns[cause].append(min(height, 1.0))
        begun = True
    return columns


def _spent_before(lapses: Sequence[Lapse], number: int) -> dict[str, float]:
    """Seconds by cause in a lapse and those just before it."""
    spent: dict[str, float] = {}
    for lapse in just_before(lapses, number, SMOOTH_SECONDS):
        for cause, seconds in lapse.waits.items():
            spent[cause] = spent.get(cause, 0.0) + seconds
    return spent


def largest(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """Causes and their shares, the largest first, without those that hardly count."""
    return sorted(((c, s) for c, s in shares.items() if s >= 0.005), key=lambda pair: -pair[1])
