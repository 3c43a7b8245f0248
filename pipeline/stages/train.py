"""train: swap rows, then run the block's steps. No other stage touches the device slab."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.device.device import Device
from pipeline.records import U32, Examples, OwnedKeys, Plan, Staged, Trained, Unique
from pipeline.storage.tier import Tier
from pipeline.training.learner import Learner


def train(
    plan: Plan,
    examples: Examples,
    unique: Unique,
    staged: Staged,
    slab: Tier,
    leaving_RW: U32,
    outgoing_RW: U32,
    learner: Learner,
    device: Device,
    owned_keys: OwnedKeys | None = None,
    weights_K: Sequence[float] = (),
) -> Trained:
    """Train on the block's batches, or score them if the block evaluates. On a GPU this only enqueues work on streams
    and does not wait. For `owned_keys` and `weights_K` see `Learner.learn`.

    While the block trains, victims are copied from the slab to `leaving_RW`, on the device, and from there to
    `outgoing_RW`, on the host. Without a GPU both are the same buffer.
    """
    num_victims = len(plan.victim_slots_E)
    outgoing_EW, leaving_EW = outgoing_RW[:num_victims], leaving_RW[:num_victims]
    device.train.after(staged.ready)
    with device.timed("train", plan.block.number, device.train):
        device.train.run(swap, staged.plan or plan, staged, slab, leaving_EW)
        swapped = device.train.record()
        found = learner.learn(staged.plan or plan, examples, unique, staged, owned_keys, weights_K)
        if not plan.block.trains:
            # Scoring reads from the arriving buffer, which must not be reused before scoring ends.
            swapped = device.train.record()
    device.down.after(swapped)
    with device.timed("copy back", plan.block.number, device.down):
        device.down.copy(leaving_EW, outgoing_EW)
    return Trained(plan.block, outgoing_EW, found, device.down.record())


def move(plan: Plan, staged: Staged, slab: Tier, leaving_RW: U32, outgoing_RW: U32, device: Device) -> Trained:
    """Swap the rows of a block that another worker refused. The block is not trained on, but its rows move, so that the
    tiers match the plan."""
    num_victims = len(plan.victim_slots_E)
    outgoing_EW, leaving_EW = outgoing_RW[:num_victims], leaving_RW[:num_victims]
    device.train.after(staged.ready)
    device.train.run(swap, staged.plan or plan, staged, slab, leaving_EW)
    device.down.after(device.train.record())
    device.down.copy(leaving_EW, outgoing_EW)
    return Trained(plan.block, outgoing_EW, None, device.down.record())


def swap(plan: Plan, staged: Staged, slab: Tier, leaving_EW: U32) -> None:
    """Swap rows: copy the victims out, then the arrivals into their slots."""
    slab.gather(plan.victim_slots_E, leaving_EW)
    slab.scatter(plan.arrival_slots, staged.rows_AW[: len(plan.arrival_slots)])
