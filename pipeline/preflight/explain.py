"""The text of --explain: the workflow, the memory and disk it will take, and the cost of dense semantics."""

from __future__ import annotations

from pipeline.kernels.read_rows import SCRATCH_BYTES
from pipeline.monitor.auc import SCORE_BYTES, SPILL_BOUND
from pipeline.monitor.group_auc import GROUP_BOUND, GROUP_BYTES
from pipeline.optim.rates import BYTES_PER_STEP
from pipeline.preflight.dense_cost import dense_cost
from pipeline.preflight.memory_table import Line, table
from pipeline.preflight.setup import Setup
from pipeline.storage.reader import NUM_READERS
from pipeline.workflow import format_size, format_size_or_share


def explain(setup: Setup) -> str:
    """Describe the workflow, and the predicted bytes of every tier and buffer of a worker."""
    workflow, fit, storage = setup.workflow, setup.fit, setup.storage
    of_each = f"; of each of {setup.world} workers:" if setup.world > 1 else ""
    lines = [
        workflow.model_dump_json(indent=1),
        f"\nlook-ahead {fit.look_ahead}, blocks of {fit.block_batches} batches{of_each}",
    ]
    for name, num_bytes, what in table(fit.sizes, fit.look_ahead, other_buffers(setup)):
        lines.append(f"{name:22} {num_bytes:>18,} bytes   {what}")
    cost = dense_cost(workflow, setup.row, fit.window.keys_of_batch, fit.window.union_of_first[-1])
    device = format_size_or_share(workflow.storage.device)
    taken = "" if isinstance(workflow.storage.device, int) else f" = {storage.device_bytes:,} bytes"
    caps = f"caps: device {device}{taken}, host {format_size(storage.host)}"
    return "\n".join([*lines, *([cost] if cost else []), caps])


def other_buffers(setup: Setup) -> list[Line]:
    """Buffers that no cap covers; their sizes depend on a batch or on the evaluated splits, not on the table."""
    workflow, num_examples = setup.workflow, setup.agenda.num_examples
    batch = workflow.schedule.batch_size * (len(workflow.data.categories) * setup.row.num_weights)
    splits = ("validation", "test", *(["train"] if workflow.metrics.progressive else []))
    evaluated = max(num_examples[split] for split in splits)
    grouped = GROUP_BYTES * min(evaluated, GROUP_BOUND) if workflow.metrics.group else 0
    scores = len(workflow.data.labels) * (SCORE_BYTES * min(evaluated, SPILL_BOUND) + grouped)
    lines = [
        ("batch", 8 * batch, "embeddings of a batch and their gradients, without the model's own activations"),
        ("log readers", NUM_READERS * SCRATCH_BYTES, f"buffers of {NUM_READERS} threads"),
        ("scores", scores, f"for a split's metrics; beyond {SPILL_BOUND:,} per label they go to disk"),
    ]
    if workflow.optimizer.rows.semantics == "dense":
        schedule, keys = workflow.schedule, max(setup.fit.window.keys_of_blocks)
        steps = schedule.epochs * -(-num_examples["train"] // schedule.batch_size)
        lines += [
            ("rates", BYTES_PER_STEP * steps, f"learning rate and L2 of each of {steps:,} steps"),
            ("rows that are scored", keys * setup.row.num_bytes * 3 // 2, "caught-up copies of the rows of a block"),
        ]
    return lines
