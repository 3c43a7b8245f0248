"""Growth of caps that a run or a scoring chose itself. Given caps never grow, nor does the disk's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from pipeline.cluster.crew import Crew
from pipeline.driver.loop import CAPS, Pace, reduce_pace
from pipeline.machine.limits import free_memory
from pipeline.messages.sizes import format_size_down
from pipeline.preflight.chosen_caps import SHARE_OF_FREE
from pipeline.preflight.setup import Setup
from pipeline.preflight.sizes import MARK_BYTES
from pipeline.records import Refusal
from pipeline.settings.caps import caps_of
from pipeline.worker.worker import Worker

IN_PLACE = ("map_bytes", "read_ring_bytes")
"""Fields of `Sizes` that can grow while workers are open."""
LEAST_SHARE = 4
"""A cap grows by at least this part of itself: a quarter."""


class Room(NamedTuple):
    setup: Setup
    remark: str
    """Sentence for the user."""
    must_reopen: bool = False
    """True if all workers must be opened again: slabs cannot grow while they are open."""


def room_for(refusal: Refusal, setup: Setup, pace: Pace, crew: Crew) -> Room | None:
    """Make room for a refused block: raise the cap that refused it, on all workers, if it was chosen and there is
    memory; else reduce the pace, if the rows of the window do not fit. Returns None if neither is possible. The
    pipeline must be drained."""
    grown = with_larger_cap(setup, refusal, pace.look_ahead, lambda: sum(crew.each(Worker.resident_bytes)))
    if grown:
        # Set first, so that workers that are lost meanwhile restart with the new sizes.
        crew.sizes = sizes = grown.setup.fit.sizes
        if not grown.must_reopen:
            crew.each(Worker.raise_caps, sizes.map_bytes, sizes.read_ring_bytes)
        return grown
    remark = reduce_pace(pace, refusal, setup) if refusal.what == "window" else None
    return Room(setup, remark) if remark else None


def with_larger_cap(setup: Setup, refusal: Refusal, look_ahead: int, resident: Callable[[], int]) -> Room | None:
    """Raise the cap that refused a block. Returns None if the cap is given or cannot grow, or if there is too little
    memory. `resident`: returns the RAM that the workers' processes use."""
    name, field, sizes = CAPS.get(refusal.cap, "disk"), refusal.cap, setup.fit.sizes
    # On a GPU, the sizes of slabs and rings depend on each other.
    if setup.budget is None or name == "disk" or (sizes.on_gpu and name != "map"):
        return None
    if getattr(setup.workflow.storage, name) is not None:
        return None
    buffers = {"read_ring_bytes": 2 * look_ahead + 1, "staging_rows": look_ahead + 1, "outgoing_rows": look_ahead + 1}
    unit = 1 if field in IN_PLACE else sizes.row_bytes
    with_marks = unit + MARK_BYTES * (field == "device_rows")
    limit = setup.budget.limit
    if setup.workflow.storage.memory is None:
        # Others may have taken memory since the run began.
        limit = min(limit, int(SHARE_OF_FREE * (free_memory() + resident()) / setup.world))
    cap, has = getattr(setup.storage, name), getattr(sizes, field)
    lacks = refusal.needed * buffers.get(field, 1) - has
    more = min(max(lacks, cap // LEAST_SHARE // unit), (limit - setup.budget.planned) // with_marks)
    if more < max(1, lacks):
        return None
    larger = replace(
        setup,
        storage=caps_of(setup.storage, **{name: cap + more * unit}),
        fit=replace(setup.fit, sizes=replace(sizes, **{field: has + more})),
        budget=replace(setup.budget, planned=setup.budget.planned + more * with_marks),
    )
    before, now, most = map(format_size_down, (cap, cap + more * unit, limit))
    remark = f"storage.{name} raised from {before} to {now}, within {most} of RAM: {refusal.message}"
    return Room(larger, remark, field not in IN_PLACE)
