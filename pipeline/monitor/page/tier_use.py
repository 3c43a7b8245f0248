"""Tiers: where keys were found, rows that moved to and from the disk, and how full each tier is."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.monitor.page.humanized import percent, short_number, short_size
from pipeline.monitor.page.panel import Followed, Nothing, Panel, chips, lapses_panel, meter, shares_panel, text_panel
from pipeline.monitor.page.speed import RATE_SECONDS
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
)
from pipeline.monitor.page.time_use import shares_of
from pipeline.monitor.story import Lapse, Story, just_before

FITS = "<p>The whole table fits on the device: no row had to leave it.</p>"
NOT_PLANNED = Nothing("No block has been planned yet.")
FOUND = ("device", "host", "disk", "new")
RATES = {"read from disk": ("read", RED), "written to disk": ("written", PURPLE)}


def found_panel() -> Panel:
    """The panel "Where keys were found": shares of the unique keys of blocks."""
    colors = {tier: TIER_COLORS[tier] for tier in FOUND}

    def line(story: Story) -> str:
        found = shares_of(_found(with_moves(story)))
        return chips({tier: (colors[tier], percent(found[tier])) for tier in FOUND}) if found else NOT_PLANNED

    return shares_panel(
        "found", "share of the blocks' unique keys", colors, lambda lapses, number: shares_of(_found([lapses[number]])),
        line,
    )  # fmt: skip


def disk_rows_panel() -> Panel:
    """The panel "Rows from and to the disk", per second."""
    shown = over_run_time(plain_figure("rows/s"))
    shown.yaxis.formatter = axis_format("short")
    shown.y_range.update(start=0, min_interval=10)
    followed = Followed(_rate_columns)
    lines = [shown.line("at", c, source=followed.source, color=color, line_width=2) for c, color in RATES.values()]
    values = [(name, f"@{column}{{0,0}} rows/s") for name, (column, _) in RATES.items()]
    hover_on(shown, lines[0], [("run time", "@at{00:00:00}"), *values])

    def line(story: Story) -> str:
        moved = with_moves(story)
        if not moved:
            return NOT_PLANNED
        seconds = sum(i.seconds for i in moved)
        means = {name: sum(_rows(i)[column] for i in moved) / seconds for name, (column, _) in RATES.items()}
        rates = chips({name: (color, f"{short_number(means[name])}/s") for name, (_, color) in RATES.items()})
        return rates + (FITS if not _evicts(moved[-1]) else "")

    return lapses_panel("disk_rows", shown, followed, line)


def fill_panel() -> Panel:
    """The panel "How full the tiers are"."""

    def text(story: Story) -> str:
        begin, tick = story.begin, story.tick or (story.lapses[-1].tick if story.lapses else None)
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


def with_moves(story: Story) -> list[Lapse]:
    """The last seconds, or all lapses once the session has ended, as far as counts of moves are known."""
    lately = None if story.ended else story.lately()
    if lately and lately.moves and lately.moves.get("keys"):
        return [lately]
    return [i for i in story.lapses if i.moves and i.moves.get("keys")]


def _rows(lapse: Lapse) -> dict[str, float]:
    moves = lapse.moves or {}
    to_disk = moves.get("device_to_disk", 0) + moves.get("host_to_disk", 0) - moves.get("unchanged", 0)
    return {"read": moves.get("disk_hits", 0), "written": max(to_disk, 0)}


def _evicts(lapse: Lapse) -> bool:
    """True if a row has left the device, in any session."""
    return any(lapse.tick.moves.get(name, 0) for name in ("device_to_host", "device_to_disk"))


def _rate_columns(lapses: Sequence[Lapse], first: int) -> dict[str, list[float]]:
    """Columns of rows per second, as means over some seconds."""
    columns: dict[str, list[float]] = {name: [] for name in ("at", *(column for column, _ in RATES.values()))}
    for number in range(first, len(lapses)):
        known = [i for i in just_before(lapses, number, RATE_SECONDS) if i.moves is not None]
        if known:
            columns["at"].append(lapses[number].end)
            for column, _ in RATES.values():
                columns[column].append(sum(_rows(i)[column] for i in known) / sum(i.seconds for i in known))
    return columns


def _found(lapses: Sequence[Lapse]) -> dict[str, float]:
    """Number of keys found in each tier."""
    names = {tier: "new" if tier == "new" else f"{tier}_hits" for tier in FOUND}
    return {tier: sum((i.moves or {}).get(name, 0) for i in lapses) for tier, name in names.items()}
