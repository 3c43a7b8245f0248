"""Table of a replay's hit rates, for a terminal or a file."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.messages.sizes import format_size_up
from pipeline.monitor.runs_table import RunsTable
from pipeline.replay.grid import BoundCell, Cell

OPTIMAL = "optimal"
"""Name of the line with the bound on the hits of any policies."""


def hits_table(cells: Sequence[Cell], bounds: Sequence[BoundCell] = ()) -> str:
    """Table with a line for each size and pair of policies, and for each bound, those of a size together."""
    order = list(dict.fromkeys(cell.size for cell in cells))
    lines = [
        (order.index(cell.size), cell.size, cell.memory_bytes, *cell.policies, cell.device_hits, cell.memory_hits,
         cell.disk_reads, cell.errors)
        for cell in cells
    ] + [
        (order.index(bound.size), bound.size, bound.memory_bytes, OPTIMAL, "", bound.device.hit_rate,
         bound.memory.hit_rate, bound.disk_reads, {})
        for bound in bounds
    ]  # fmt: skip
    lines.sort(key=lambda line: line[0])
    _, sizes, memory, device, host, on_device, in_memory, reads, errors = zip(*lines, strict=True)
    table = RunsTable(1 << 16)
    table.must("size", sizes, left=True)
    table.must("rows in\nmemory", [format_size_up(num_bytes) for num_bytes in memory])
    table.must("policy of\ndevice", device, left=True)
    table.must("policy of\nhost", host, left=True)
    for head, tier, shares in (("found on\ndevice", "device", on_device), ("on device\nor host", "memory", in_memory)):
        table.must(head, [_share(share, of.get(tier)) for share, of in zip(shares, errors, strict=True)])
    table.must("rows read\nfrom disk", [f"{num:,}" for num in reads])
    return str(table)


def _share(share: float, error: float | None) -> str:
    return f"{share:.2%}" if error is None else f"{share:.2%} ± {error:.2%}"
