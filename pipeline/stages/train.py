"""train: swap rows, then the block's steps. The device slab is touched here and nowhere else."""

from __future__ import annotations

from pipeline.models.learner import Learner
from pipeline.records import U32, Examples, Plan, Staged, Trained, Unique
from pipeline.storage.tier import Tier


def train(
    plan: Plan, examples: Examples, unique: Unique, staged: Staged, device: Tier, outgoing_RW: U32, learner: Learner
) -> Trained:
    """Train on the block's batches, or score them if the block evaluates."""
    outgoing_EW = outgoing_RW[: len(plan.victim_slots_E)]
    swap(plan, staged, device, outgoing_EW)
    learner.begin(plan, staged)
    for batch, index in enumerate(unique.batches):
        if plan.block.trains:
            learner.step(examples, batch, index)
        else:
            learner.score(examples, batch, index)
    loss, metrics = learner.end()
    return Trained(plan.block, outgoing_EW, loss, metrics)


def swap(plan: Plan, staged: Staged, device: Tier, outgoing_EW: U32) -> None:
    """Victims leave first: arrivals take their slots."""
    device.gather(plan.victim_slots_E, outgoing_EW)
    device.scatter(plan.arrival_slots, staged.rows_AW[: len(plan.arrival_slots)])
