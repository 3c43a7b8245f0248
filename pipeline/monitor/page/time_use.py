"""Where the time goes: what training did, what it waited for, and how busy each stage was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Any

from pipeline.monitor.live.what_binds import what_binds
from pipeline.monitor.page.humanized import percent, short_duration
from pipeline.monitor.page.panel import Followed, Nothing, Panel, SessionMarks, chips, meter, plot_panel, text_panel
from pipeline.monitor.page.style import (
    CAUSE_COLORS,
    STAGE_COLORS,
    axis_format,
    over_run_time,
    plain_figure,
    stack_areas,
)
from pipeline.monitor.story import Lapse, Story, just_before
from pipeline.stages import STAGES

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
    spent, seconds, _ = _lately(story)
    period = f"{short_duration(seconds)} of the last session:" if story.ended else f"last {short_duration(seconds)}:"
    parts = {cause: (CAUSE_COLORS[cause], percent(share)) for cause, share in largest(shares_of(spent))}
    return chips({period: ("", "")} | parts)


def binding_panel() -> Panel:
    """The panel "What limits the speed": the sentence that a run prints at its end, and how busy each stage was."""

    def text(story: Story) -> str:
        spent, seconds, stages = _lately(story)
        if not seconds:
            return '<p class="nothing">No block is done yet.</p>'
        busy = {stage: stages[stage] / seconds for stage in STAGES if stages.get(stage)}
        bars = "".join(meter(stage, share, STAGE_COLORS[stage], percent(share)) for stage, share in busy.items())
        period = "the whole session" if story.ended else "the last seconds"
        said = escape(what_binds(spent, seconds))
        return f"<p>{said[0].upper()}{said[1:]}.</p>{bars}<p>Share of {period} in which a stage was busy.</p>"

    return text_panel("binding", text)


def _lately(story: Story) -> tuple[Mapping[str, float], float, Mapping[str, float]]:
    """Seconds by cause, all seconds, and seconds by stage: of the last seconds, or of a session that has ended."""
    lately = story.lately()
    if story.ended:
        return story.ended.waits, story.ended.seconds, lately.tick.stages if lately else {}
    return (lately.waits, lately.seconds, lately.stages) if lately else ({}, 0.0, {})


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Share of each cause in the sum of all; "train" is not waiting."""
    total = sum(seconds.values())
    return {cause: value / total for cause, value in seconds.items()} if total else {}


def waits_of(seconds: Mapping[str, float]) -> tuple[float, str, float]:
    """Share of the time that training waited, the cause for which it waited longest, and its share."""
    waits = {cause: share for cause, share in shares_of(seconds).items() if cause not in ("train", "unattributed")}
    longest = max(waits, key=waits.__getitem__, default="")
    return sum(waits.values()), longest, waits.get(longest, 0.0)


def _columns(lapses: Sequence[Lapse], first: int) -> dict[str, list[Any]]:
    """Columns with the upper edge of each cause's area at the end of each lapse from number `first` on: means of
    some seconds, since what a block waited for is told when it is done."""
    columns: dict[str, list[Any]] = {name: [] for name in ("at", "told", "zero", *ORDER)}
    begun = any(sum(lapse.waits.values()) > 0 for lapse in lapses[:first])
    for number in range(first, len(lapses)):
        shares = shares_of(spent_in(just_before(lapses, number, SMOOTH_SECONDS)))
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


def spent_in(lapses: Iterable[Lapse]) -> dict[str, float]:
    """Seconds by cause in some lapses."""
    spent: dict[str, float] = {}
    for lapse in lapses:
        for cause, seconds in lapse.waits.items():
            spent[cause] = spent.get(cause, 0.0) + seconds
    return spent


def largest(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """Causes and their shares, the largest first, without those that hardly count."""
    return sorted(((c, s) for c, s in shares.items() if s >= 0.005), key=lambda pair: -pair[1])
