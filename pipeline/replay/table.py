"""Table of a replay's hit rates, for a terminal or a file."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.messages.sizes import format_size_up
from pipeline.monitor.runs_table import RunsTable
from pipeline.replay.grid import BoundCell, Cell


def hits_table(cells: Sequence[Cell], bounds: Sequence[BoundCell] = ()) -> str:
    """Table with a line for each size and pair of policies, and for each bound, those of a size together."""
    order = list(dict.fromkeys(cell.size for cell in cells))
    lines: list[Cell | BoundCell] = sorted([*cells, *bounds], key=lambda line: order.index(line.size))
    table = RunsTable(1 << 16)
    table.must("size", [line.size for line in lines], left=True)
    table.must("rows in\nmemory", [format_size_up(line.memory_bytes) for line in lines])
    for place, tier in enumerate(("device", "host")):
        table.must(f"policy of\n{tier}", [line.policies[place] for line in lines], left=True)
    for head, tier in (("found on\ndevice", "device"), ("on device\nor host", "memory")):
        table.must(head, [_share(line.shares[tier], line.errors.get(tier)) for line in lines])
    table.must("rows read\nfrom disk", [f"{line.disk_reads:,}" for line in lines])
    return str(table)


def _share(share: float, error: float | None) -> str:
    return f"{share:.2%}" if error is None else f"{share:.2%} ± {error:.2%}"
