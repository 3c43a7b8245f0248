"""write_back: move the device's victims to the host slab, and the host's victims to disk. The only stage that writes
these tiers."""

from __future__ import annotations

from pipeline.records import I32, I64, U32, Plan, Trained, Written
from pipeline.storage.tier import Tier


def write_back(plan: Plan, trained: Trained, host: Tier, disk: Tier, chunk_RW: U32) -> Written:
    """Write every outgoing row to its planned place. `chunk_RW` has room for one chunk of the log.

    It always waits for the block's swap, even if no row leaves: later tasks of the graph reuse the block's staging and
    outgoing buffers.
    """
    trained.swapped.wait()
    write_to_disk(plan, trained, host, disk, chunk_RW)
    keep_on_host(plan, trained, host)
    return Written(plan.block)


def write_to_disk(plan: Plan, trained: Trained, host: Tier, disk: Tier, chunk_RW: U32) -> None:
    """Append to each shard the host's victims, then the device's victims that go to disk.

    Must run before `keep_on_host`, since outgoing rows take the slots of the host's victims.
    """
    slots, outgoing_EW = plan.host_victim_slots, trained.outgoing_EW[len(plan.host_into) :]
    for write in plan.disk_writes:
        _append(write.at_N, slots[: write.num_host], outgoing_EW[: write.num_device], host, disk, chunk_RW)
        slots, outgoing_EW = slots[write.num_host :], outgoing_EW[write.num_device :]


def _append(at_N: I64, slots: I32, outgoing_EW: U32, host: Tier, disk: Tier, chunk_RW: U32) -> None:
    """Write the rows of the host's `slots`, then `outgoing_EW`, to positions `at_N`, one chunk at a time."""
    for first in range(0, len(at_N), len(chunk_RW)):
        at_R = at_N[first : first + len(chunk_RW)]
        rows_RW = chunk_RW[: len(at_R)]
        from_host = slots[first : first + len(at_R)]
        host.gather(from_host, rows_RW[: len(from_host)])
        begin = first + len(from_host) - len(slots)
        rows_RW[len(from_host) :] = outgoing_EW[begin : begin + len(at_R) - len(from_host)]
        disk.scatter(at_R, rows_RW)


def keep_on_host(plan: Plan, trained: Trained, host: Tier) -> None:
    host.scatter(plan.host_into, trained.outgoing_EW[: len(plan.host_into)])
