"""Cost of a workflow's work on a machine that is not here, computed from that machine's rates and the operations of the
dense model, which are counted here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from pipeline.data.source import Source
from pipeline.machine.threads import share_of
from pipeline.planner.machine import ComputeRates, Machine
from pipeline.planner.read_cost import values_of_example
from pipeline.planner.timing import Cost
from pipeline.planner.work import Work
from pipeline.preflight.setup import Setup
from pipeline.records import Rank
from pipeline.training.build import build_model
from pipeline.training.forward import binary_cross_entropy

COUNTED_EXAMPLES = 256
"""Examples of the batch whose operations are counted."""
SCORED = 1 / 3
"""Share of a step's work that scoring takes: forward without backward."""
ROW_PASSES, VALUE_PASSES = 3, 4
"""Passes over the rows of a batch's keys (look up, read and write in the update), and over its embeddings (spread and
read, gradients written and summed)."""

DEDUP_BYTES_ON_GPU = 150
"""Bytes that `dedup` moves for a value where it runs on the GPU, which it does with one worker: hash table, positions
and sorting, each written and read."""
COMPILE_SECONDS = 10.0
"""Seconds until a dense part is compiled that lies in torch's cache, or a small one without it."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of forward and backward pass and dense Adam, for one batch."""

    flops: float
    num_bytes: float
    """Bytes that operations read and write."""
    calls: int


class _Counter(TorchDispatchMode):
    """Counter of operations and of the bytes of the tensors that they take and give."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):
            self.calls += 1
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            self.num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def count_operations(setup: Setup, batch: int) -> Operations:
    """Count the operations of a step of the dense model with `batch` examples: those of a small batch, scaled."""
    workflow, row = setup.workflow, setup.row
    fields, labels = len(workflow.data.categories), len(workflow.data.labels)
    with torch.random.fork_rng(devices=[]):
        model = build_model(workflow)
        leaves = [
            torch.zeros(COUNTED_EXAMPLES, fields, row.embedding_dim).requires_grad_(),
            torch.zeros(COUNTED_EXAMPLES, fields if row.first_order else 0).requires_grad_(),
        ]
        with _Counter() as counter, FlopCounterMode(display=False) as flops:
            output = model(torch.zeros(COUNTED_EXAMPLES, len(workflow.data.numbers)), *leaves)
            loss = getattr(model, "loss", binary_cross_entropy)(output, torch.zeros(COUNTED_EXAMPLES, labels), None)
            loss.backward()
    weights = sum(value.numel() for value in model.parameters())
    scale = batch / COUNTED_EXAMPLES
    # Adam reads and writes a weight, its gradient and two moments.
    return Operations(flops.get_total_flops() * scale, counter.num_bytes * scale + 7 * 4 * weights, counter.calls + 1)


def work_elsewhere(setup: Setup, source: Source, machine: Machine) -> Work:
    """Compute the costs on a machine whose rates are known, for a worker's part of each batch."""
    rates, workflow, row = machine.rates, setup.workflow, setup.row
    assert rates, "the rates were checked when the machine was loaded"
    batch = Rank(0, setup.world).size_of(workflow.schedule.batch_size)
    values, example_bytes = values_of_example(source)
    keys = min(setup.fit.window.keys_of_batch, values * batch)
    counted = count_operations(setup, batch)
    dense = max(
        counted.flops / _flops(rates, workflow.model.precision), counted.num_bytes / rates.memory_bytes_per_second
    )
    dense += counted.calls * rates.operation_seconds
    moved = ROW_PASSES * keys * row.num_bytes + VALUE_PASSES * 4 * row.num_weights * values * batch
    step = dense + moved / rates.memory_bytes_per_second
    on_gpu = setup.fit.sizes.on_gpu
    cores = 1.0 if on_gpu else min(machine.cores, workflow.schedule.threads)
    columns = values + len(workflow.data.numbers) + len(workflow.data.labels)
    threads = share_of(workflow.schedule.threads)
    read, dedup = columns * rates.read_seconds_per_value, rates.dedup_seconds_per_value
    of_value = Cost(dedup / threads, dedup)
    if on_gpu and setup.world == 1:
        of_value = Cost(DEDUP_BYTES_ON_GPU / rates.memory_bytes_per_second)
    first = row.num_bytes / machine.copy_bytes_per_second + row.num_weights * rates.dedup_seconds_per_value
    activations = 0 if on_gpu else int(counted.num_bytes)
    return Work(
        values, example_bytes, keys, Cost(read / threads, read), of_value, Cost(first, first),
        Cost(step, step * cores), Cost(step * SCORED, step * SCORED * cores),
        COMPILE_SECONDS if workflow.model.compile else 0.0, rates.beside, machine.process_bytes + activations,
    )  # fmt: skip


def _flops(rates: ComputeRates, precision: str) -> float:
    return rates.bfloat16_flops_per_second if precision == "bfloat16" else rates.flops_per_second
