"""upload: a block's arrivals and indices to the GPU. Submitted only where the device has memory of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from pipeline.device import Device
from pipeline.records import U32, Plan, Staged


def upload(plan: Plan, staged: Staged, arriving_RW: U32, device: Device) -> Staged:
    """Have the rows copied into `arriving_RW`, on the device, and what `train` needs of the plan beside them."""
    rows_AW = arriving_RW[: len(staged.rows_AW)]
    parts = (plan.rows_U, plan.arrival_slots, plan.victim_slots_E)
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    indices, there = device.pinned(ends[-1], np.int32), device.empty(ends[-1], np.int32)
    np.concatenate(parts, out=indices)
    with device.timed("upload", plan.block.number, device.up):
        device.up.copy(staged.rows_AW, rows_AW)
        device.up.copy(indices, there)
    rows_U, arrival_slots, victim_slots_E = (there[a:b] for a, b in pairwise(ends))
    plan_there = replace(plan, rows_U=rows_U, arrival_slots=arrival_slots, victim_slots_E=victim_slots_E)
    return Staged(plan.block, rows_AW, plan_there, device.up.record(), indices)
