"""Where keys were found: the share of each tier."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.monitor.page.humanized import percent
from pipeline.monitor.page.panel import Nothing, Panel, chips, shares_panel
from pipeline.monitor.page.style import TIER_COLORS
from pipeline.monitor.page.time_use import shares_of
from pipeline.monitor.story import Lapse, Story

FITS = "<p>The whole table fits on the device: no row had to leave it.</p>"
FOUND = ("device", "host", "disk", "new")


def found_panel() -> Panel:
    """The panel "Where keys were found": shares of the blocks' unique keys."""
    colors = {tier: TIER_COLORS[tier] for tier in FOUND}

    def line(story: Story) -> str:
        moved = with_moves(story)
        if not moved:
            return Nothing("No block has been planned yet.")
        found = shares_of(_found(moved))
        return chips({tier: (colors[tier], percent(found[tier])) for tier in FOUND}) + FITS * (not _evicts(moved[-1]))

    return shares_panel(
        "found", "share of the blocks' unique keys", colors, lambda lapses, number: shares_of(_found([lapses[number]])),
        line,
    )  # fmt: skip


def with_moves(story: Story) -> list[Lapse]:
    """The last seconds, or all lapses if the session has ended, where counts of moves are known."""
    lately = None if story.ended else story.lately()
    if lately and lately.moves and lately.moves.get("keys"):
        return [lately]
    return [i for i in story.lapses if i.moves and i.moves.get("keys")]


def _evicts(lapse: Lapse) -> bool:
    """True if a row was evicted from the device, in any session."""
    return any(lapse.tick.moves.get(name, 0) for name in ("device_to_host", "device_to_disk"))


def _found(lapses: Sequence[Lapse]) -> dict[str, float]:
    """Number of keys found in each tier."""
    names = {tier: "new" if tier == "new" else f"{tier}_hits" for tier in FOUND}
    return {tier: sum((i.moves or {}).get(name, 0) for i in lapses) for tier, name in names.items()}
