"""Table of the fields, with bars: the share of keys of each field, and where its rows were found."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from pipeline.monitor.live.lines import Fields
from pipeline.monitor.page.humanized import percent, short_size
from pipeline.monitor.page.panel import Nothing, bar, dot
from pipeline.monitor.page.style import TIER_COLORS
from pipeline.monitor.story import Story

MISSED = {"host": "in the host tier", "disk": "on disk", "new": "new"}
"""Possible locations of keys that are not on the device."""


class FieldUse(NamedTuple):
    """Counts of one field in the sampled blocks."""

    name: str
    values: int
    keys: int
    host: int
    disk: int
    new: int

    @property
    def missed(self) -> int:
        """Keys that were not on the device."""
        return self.host + self.disk + self.new


def field_uses(names: Sequence[str], sampled: Sequence[Fields]) -> list[FieldUse]:
    """Sums over the sampled blocks, with the field with the most missed keys first."""
    uses = [
        FieldUse(
            name, *(sum(getattr(one, what)[n] for one in sampled) for what in ("values", "keys", "host", "disk", "new"))
        )
        for n, name in enumerate(names)
        if all(n < len(one.values) for one in sampled)
    ]
    return sorted(uses, key=lambda use: (-use.missed, -use.keys))


def field_table(story: Story) -> str:
    """A table of the fields, as HTML."""
    if not story.fields or not story.begin:
        return Nothing("No block has been sampled yet.")
    uses, row_bytes, num_blocks = field_uses(story.begin.fields, story.fields), story.begin.row_bytes, len(story.fields)
    keys = max(sum(use.keys for use in uses), 1)
    moved = max(sum(use.missed for use in uses), 1)
    most_keys, most_missed = max((u.keys for u in uses), default=1), max((u.missed for u in uses), default=1)
    rows = []
    for use in uses:
        key_bar = bar([(TIER_COLORS["device"], use.keys / max(most_keys, 1))])
        missed = [(TIER_COLORS[tier], getattr(use, tier) / max(most_missed, 1)) for tier in MISSED]
        rows.append(
            f"<tr><td>{escape(use.name)}</td>"
            f"<td class=bars><span>{percent(use.keys / keys)}</span>{key_bar}</td>"
            f"<td class=bars><span>{percent(use.missed / moved)}</span>{bar(missed)}</td>"
            f"<td>{percent(use.missed / use.keys if use.keys else 0.0)}</td>"
            f"<td>{short_size(use.missed * row_bytes / num_blocks)}</td></tr>"
        )
    legend = ", ".join(f"{dot(TIER_COLORS[tier])}{note}" for tier, note in MISSED.items())
    sampled = "one sampled block" if num_blocks == 1 else f"the last {num_blocks} sampled blocks"
    return (
        "<div class='wide'><table><tr><th>field</th><th class='bars'>share of all unique keys</th>"
        "<th class='bars'>share of all misses</th><th>of its keys missed</th><th>bytes a block</th></tr>"
        f"{''.join(rows)}</table></div><p>Of {sampled}. A miss is a unique key that is not on the device: {legend}.</p>"
    )
