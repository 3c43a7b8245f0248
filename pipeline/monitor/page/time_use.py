"""Use of time and tiers: what training did, what it waited for, how busy each stage was, and where keys were found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from pipeline.monitor.live.waits import what_binds
from pipeline.monitor.page.humanized import percent, short_duration
from pipeline.monitor.page.plots import (
    CAUSE_COLORS,
    STAGE_COLORS,
    TIER_COLORS,
    area_plot,
    bar,
    legend,
    number_axis,
    time_axis,
)
from pipeline.monitor.story import Lapse, Story, total


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
