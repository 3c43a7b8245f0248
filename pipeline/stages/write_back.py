"""write_back: rows that left the device into the host slab, the host's victims to disk. The only writer of both."""

from __future__ import annotations

import numpy as np

from pipeline.records import U32, Plan, Trained, Written
from pipeline.storage.tier import Tier


def write_back(plan: Plan, trained: Trained, host: Tier, disk: Tier, chunk_RW: U32) -> Written:
    """Put every row where the plan says. `chunk_RW` holds one chunk of the log.

    Waits for the block's swap, also where no row leaves: what comes after this task in the graph takes its staging and
    outgoing buffers.
    """
    trained.swapped.wait()
    spill(plan, trained, host, disk, chunk_RW)
    keep(plan, trained, host)
    return Written(plan.block)


def spill(plan: Plan, trained: Trained, host: Tier, disk: Tier, chunk_RW: U32) -> None:
    """Append the host's victims, then the device's that found no slot, a chunk at a time.

    Comes before `keep`: outgoing rows take the slots of the host's victims.
    """
    slots = plan.host_victim_slots
    outgoing_EW = trained.outgoing_EW[len(plan.host_into) :]
    for first in range(0, plan.num_to_disk, len(chunk_RW)):
        rows_RW = chunk_RW[: min(len(chunk_RW), plan.num_to_disk - first)]
        from_host = slots[first : first + len(rows_RW)]
        host.gather(from_host, rows_RW[: len(from_host)])
        at = first + len(from_host) - len(slots)
        rows_RW[len(from_host) :] = outgoing_EW[at : at + len(rows_RW) - len(from_host)]
        disk.scatter(plan.disk_from + np.arange(first, first + len(rows_RW)), rows_RW)


def keep(plan: Plan, trained: Trained, host: Tier) -> None:
    host.scatter(plan.host_into, trained.outgoing_EW[: len(plan.host_into)])
