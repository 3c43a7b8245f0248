"""prefetch: a block's arrivals, from new keys, the host and the disk, into a staging buffer. Only reads tiers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.records import U32, U64, Plan, Staged
from pipeline.storage.layout import row_keys
from pipeline.storage.tier import Tier


def prefetch(plan: Plan, host: Tier, disk: Tier, staging_RW: U32, init: Callable[[U64, U32], None]) -> Staged:
    """Fill staging in the plan's order. `init` makes the rows of new keys. Raises KeyError if a tier holds another
    key's row where the map says that this one lies."""
    rows_AW = staging_RW[: len(plan.arrival_keys_A)]
    host_at = plan.num_new
    disk_at = host_at + len(plan.arrival_host_slots)
    init(plan.arrival_keys_A[:host_at], rows_AW[:host_at])
    host.gather(plan.arrival_host_slots, rows_AW[host_at:disk_at])
    disk.gather(plan.arrival_disk_at, rows_AW[disk_at:])
    _check_keys(plan, rows_AW, disk_at)
    return Staged(plan.block, rows_AW)


def _check_keys(plan: Plan, rows_AW: U32, disk_at: int) -> None:
    got_A = row_keys(rows_AW)
    wrong = np.flatnonzero(got_A != plan.arrival_keys_A)
    if not len(wrong):
        return
    a = int(wrong[0])
    if a < disk_at:
        place = f"host slot {plan.arrival_host_slots[a - plan.num_new]}"
    else:
        place = f"log position {plan.arrival_disk_at[a - disk_at]}"
    raise KeyError(
        f"{len(wrong)} of {len(got_A)} rows are not the ones asked for; the first: {place} holds key "
        f"{got_A[a]:#018x} instead of {plan.arrival_keys_A[a]:#018x}. No row of this block was used"
    )
