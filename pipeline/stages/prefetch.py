"""prefetch: collect a block's arrivals (new rows, and rows from host and disk) in a staging buffer. Only reads
tiers."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.records import U32, U64, Plan, Staged
from pipeline.storage.tier import Tier, check_keys


def prefetch(plan: Plan, host: Tier, disk: Tier, staging_RW: U32, init: Callable[[U64, U32], None]) -> Staged:
    """Fill the staging buffer in the plan's order. `init` creates the rows of new keys. Raises Damaged if a tier has
    the row of another key at a planned place."""
    rows_AW = staging_RW[: len(plan.arrival_keys_A)]
    host_at = plan.num_new
    disk_at = host_at + len(plan.arrival_host_slots)
    init(plan.arrival_keys_A[:host_at], rows_AW[:host_at])
    host.gather(plan.arrival_host_slots, rows_AW[host_at:disk_at])
    disk.gather(plan.arrival_disk_at, rows_AW[disk_at:])
    keys_A = plan.arrival_keys_A
    check_keys(host, plan.arrival_host_slots, rows_AW[host_at:disk_at], keys_A[host_at:disk_at])
    check_keys(disk, plan.arrival_disk_at, rows_AW[disk_at:], keys_A[disk_at:])
    return Staged(plan.block, rows_AW)
