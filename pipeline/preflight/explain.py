"""Text and values of --explain: rows, steps and keys, the memory and disk that they take, and whether that fits."""

from __future__ import annotations

import math
from typing import Any

from pipeline.kernels.read_rows import SCRATCH_BYTES
from pipeline.messages.sizes import format_size, format_size_or_share, format_size_up
from pipeline.monitor.auc import SCORE_BYTES, SPILL_BOUND
from pipeline.monitor.group_auc import GROUP_BOUND, GROUP_BYTES
from pipeline.optim.rates import BYTES_PER_STEP
from pipeline.preflight.dense_cost import dense_cost
from pipeline.preflight.memory_table import Line, printed, table
from pipeline.preflight.setup import Setup
from pipeline.storage.key_map import most_bytes_for
from pipeline.storage.reader import NUM_READERS

HEAPS_GROWTH = 0.7
"""Exponent with which the number of keys grows with the examples if only one block was looked at: about that of
Criteo's and Avazu's logs."""
STALE = 2.5
"""Bytes of the log per byte of live rows: stale rows that commits keep, and the reserve for another one."""


def explain(setup: Setup, all_parts: bool = False) -> str:
    """Describe a run before it begins: what it is, what it takes, whether that is enough. `all_parts`: then also the
    predicted size of every tier and buffer of a worker."""
    workflow, fit = setup.workflow, setup.fit
    cost = dense_cost(workflow, setup.row, fit.window.keys_of_batch, fit.window.union_of_first[-1])
    lines = [*in_short(setup), *([cost] if cost else [])]
    if all_parts:
        of_each = f"; of each of {setup.world} workers:" if setup.world > 1 else ""
        lines.append(f"\nlook-ahead {fit.look_ahead}, blocks of {fit.block_batches} batches{of_each}")
        lines += printed(table(fit.sizes, fit.look_ahead, other_buffers(setup)))
    return "\n".join(lines)


def explained(setup: Setup) -> dict[str, Any]:
    """Values of `explain` for JSON: the workflow as it would be trained, numbers of examples, steps and keys, and the
    bytes of everything."""
    fit = setup.fit
    return {
        "workflow": setup.workflow.model_dump(mode="json"),
        "examples": dict(setup.agenda.num_examples),
        "steps": _steps(setup),
        "keys": estimated_keys(setup),
        "row_bytes": setup.row.num_bytes,
        "look_ahead": fit.look_ahead,
        "block_batches": fit.block_batches,
        "workers": setup.world,
        "bytes": {name: size for name, size, _ in table(fit.sizes, fit.look_ahead, other_buffers(setup))},
    }


def in_short(setup: Setup) -> list[str]:
    """Ten lines at most for a person: rows, steps, keys, table, memory and disk, and what to change if they are too
    small."""
    workflow, storage, sizes = setup.workflow, setup.storage, setup.fit.sizes
    examples, schedule = setup.agenda.num_examples, workflow.schedule
    keys, row_bytes = estimated_keys(setup), setup.row.num_bytes
    table_bytes = keys * row_bytes
    parts = table(sizes, setup.fit.look_ahead, other_buffers(setup))
    ram = setup.world * sum(size for name, size, _ in parts if name != "disk log")
    held = min(1.0, setup.world * (sizes.device_rows + sizes.host_rows) / max(1, keys))
    others = ", ".join(f"{examples[split]:,} of {split}" for split in ("validation", "test") if examples[split])
    device = format_size_or_share(workflow.storage.device)
    if not isinstance(workflow.storage.device, int):
        device += f" ({format_size_up(storage.device_bytes)})"
    lines = [
        f"{workflow.name}: {workflow.model.kind.__name__} on {len(workflow.data.numbers)} numbers and "
        f"{len(workflow.data.categories)} categories",
        f"examples: {examples['train']:,} of training{f', {others}' if others else ''}",
        f"steps:    {_steps(setup):,} of {schedule.batch_size:,} examples, in {schedule.epochs} "
        f"{'epoch' if schedule.epochs == 1 else 'epochs'}{' at most' if schedule.plateau else ''}",
        f"keys:     about {keys:,}, guessed from the first blocks; rows of {row_bytes} bytes, so a table of about "
        f"{format_size_up(table_bytes)}",
        f"memory:   {format_size_up(ram)} besides the model: device {device}, host {format_size(storage.host)}, map "
        f"{format_size(storage.map)}, read {format_size(storage.read)}"
        + (f"; of all {setup.world} workers" if setup.world > 1 else ""),
        f"          device and host hold {held:.0%} of the table; the others are read from disk when they are needed",
        f"disk:     {format_size(storage.disk)} at most; such a table takes about "
        f"{format_size_up(int(STALE * table_bytes))} with the commits that are kept",
    ]
    advice = []
    for name, cap, needed in (
        ("map", storage.map, most_bytes_for(keys)), ("disk", storage.disk, int(STALE * table_bytes))
    ):  # fmt: skip
        if setup.world * cap < needed:
            size = format_size_up(-(-needed // setup.world))
            advice.append(f"storage.{name} may be too small: raise it to about {size!r}")
    return [*lines, *(advice or ["fits, as far as can be said before the run"])]


def estimated_keys(setup: Setup) -> int:
    """Guess of the number of keys of the whole training: a power of the number of examples that goes through those of
    the first window (Heaps' law), but at most one key per value."""
    window, examples = setup.fit.window, setup.agenda.num_examples["train"]
    unions = window.union_of_first
    block = min(examples, setup.fit.block_batches * setup.workflow.schedule.batch_size)
    seen = min(examples, block * len(unions))
    if not seen or not unions[-1]:
        return 0
    growth = HEAPS_GROWTH
    if len(unions) > 1 and seen > block:
        growth = min(1.0, max(0.0, math.log(unions[-1] / unions[0]) / math.log(seen / block)))
    return int(unions[-1] * (examples / seen) ** growth)


def _steps(setup: Setup) -> int:
    schedule = setup.workflow.schedule
    return int(schedule.epochs * -(-setup.agenda.num_examples["train"] // schedule.batch_size))


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
