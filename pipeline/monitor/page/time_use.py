"""Time use: what training did, what it waited for, and how busy each stage was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from pipeline.monitor.live.waits import what_binds
from pipeline.monitor.page.humanized import percent, short_duration
from pipeline.monitor.page.panel import Nothing, Panel, chips, largest, meter, shares_panel
from pipeline.monitor.page.style import CAUSE_COLORS, STAGE_COLORS
from pipeline.monitor.story import Lapse, Story, just_before
from pipeline.stages import STAGES

SMOOTH_SECONDS = 5.0
"""Averaging period of shares, in seconds."""


def time_use_panel() -> Panel:
    """The panel "Where the time goes"."""

    def shares(lapses: Sequence[Lapse], number: int) -> Mapping[str, float]:
        # Shares are averaged over some seconds, since what a block waited for is known only when it is done.
        return shares_of(spent_in(just_before(lapses, number, SMOOTH_SECONDS)))

    def line(story: Story) -> str:
        return time_use_legend(story) if story.lapses else Nothing("No block has been trained yet.")

    return shares_panel("time_use", "share of the wall time of training", CAUSE_COLORS, shares, line)


def time_use_legend(story: Story) -> str:
    """Shares of the last seconds, or of the whole session if it has ended, as a legend, largest first."""
    spent, seconds, _ = _lately(story)
    period = f"{short_duration(seconds)} of the last session:" if story.ended else f"last {short_duration(seconds)}:"
    parts = {cause: (CAUSE_COLORS[cause], percent(share)) for cause, share in largest(shares_of(spent))}
    return chips({period: ("", "")} | parts)


def binding(story: Story) -> str:
    """HTML of the sentence that a run prints at its end on what limits its speed, and of how busy each stage was."""
    spent, seconds, stages = _lately(story)
    if not seconds:
        return Nothing("No block is done yet.")
    busy = {stage: stages[stage] / seconds for stage in STAGES if stages.get(stage)}
    bars = "".join(meter(stage, share, STAGE_COLORS[stage], percent(share)) for stage, share in busy.items())
    period = "the whole session" if story.ended else "the last seconds"
    said = escape(what_binds(spent, seconds))
    return f"<p>{said[0].upper()}{said[1:]}.</p>{bars}<p>Share of {period} in which a stage was busy.</p>"


def _lately(story: Story) -> tuple[Mapping[str, float], float, Mapping[str, float]]:
    """Seconds by cause, total seconds, and seconds by stage, over the last seconds or over a session that has ended."""
    lately = story.lately()
    if story.ended:
        return story.ended.waits, story.ended.seconds, lately.tick.stages if lately else {}
    return (lately.waits, lately.seconds, lately.stages) if lately else ({}, 0.0, {})


def shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """Share of each cause in the total; "train" is not a wait."""
    total = sum(seconds.values())
    return {cause: value / total for cause, value in seconds.items()} if total else {}


def waiting_share(seconds: Mapping[str, float]) -> float:
    """Share of time that training waited."""
    return sum(share for cause, share in shares_of(seconds).items() if cause not in ("train", "unattributed"))


def spent_in(lapses: Iterable[Lapse]) -> dict[str, float]:
    """Seconds by cause, summed over some lapses."""
    spent: dict[str, float] = {}
    for lapse in lapses:
        for cause, seconds in lapse.waits.items():
            spent[cause] = spent.get(cause, 0.0) + seconds
    return spent
