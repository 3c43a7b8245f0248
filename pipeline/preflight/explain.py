"""Text and values of --explain: rows, steps and keys, the memory and disk space they take, and whether they fit."""

from __future__ import annotations

from typing import Any

from pipeline.messages.sizes import MemoryShare, format_size_up
from pipeline.preflight.setup import Setup
from pipeline.preflight.sizes import Line, guessed_keys, other_buffers, printed, table
from pipeline.storage.key_map import most_bytes_for

STALE = 2.5
"""Bytes of the log per byte of live rows, including stale rows that commits keep and the reserve for another commit."""


def explain(setup: Setup, all_parts: bool = False) -> str:
    """Describe a run before it starts: what it does, what it needs, and whether the caps suffice. `all_parts`: append
    the predicted size of every tier and buffer of a worker."""
    fit, lines = setup.fit, in_short(setup)
    if all_parts:
        of_each = f"; of each of {setup.world} workers:" if setup.world > 1 else ""
        lines.append(f"\nlook-ahead {fit.look_ahead}, blocks of {fit.block_batches} batches{of_each}")
        lines += printed(table(fit.sizes, fit.look_ahead, _others(setup)))
    return "\n".join(lines)


def explained(setup: Setup) -> dict[str, Any]:
    """Values of `explain` as JSON values: the workflow as it would be trained, numbers of examples, steps and keys, and
    the bytes of each tier and buffer."""
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
        "bytes": {name: size for name, size, _ in table(fit.sizes, fit.look_ahead, _others(setup))},
    }


def in_short(setup: Setup) -> list[str]:
    """Summary in at most ten lines: rows, steps, keys, table, memory and disk, and what to change if these are too
    small."""
    workflow, storage, sizes = setup.workflow, setup.storage, setup.fit.sizes
    examples, schedule = setup.agenda.num_examples, workflow.schedule
    keys, row_bytes = estimated_keys(setup), setup.row.num_bytes
    table_bytes = keys * row_bytes
    parts = table(sizes, setup.fit.look_ahead, _others(setup))
    ram = setup.world * sum(size for name, size, _ in parts if name != "disk log")
    held = min(1.0, setup.world * (sizes.device_rows + sizes.host_rows) / max(1, keys))
    others = ", ".join(f"{examples[split]:,} of {split}" for split in ("validation", "test") if examples[split])
    num_spans = setup.agenda.end.span
    in_spans = "" if num_spans is None else f" in {num_spans:,} spans"
    device = format_size_up(storage.device)
    if isinstance(workflow.storage.device, MemoryShare):
        device = f"{workflow.storage.device} ({device})"
    lines = [
        f"{workflow.name}: {workflow.model.kind.__name__} on {len(workflow.data.numbers)} numbers and "
        f"{len(workflow.data.categories)} categories"
        + (f", {len(workflow.data.sequences)} sequences" if workflow.data.sequences else ""),
        f"examples: {examples['train']:,} of training{in_spans}{f', {others}' if others else ''}",
        f"steps:    {_steps(setup):,} of {schedule.batch_size:,} examples, in {schedule.epochs} "
        f"{'epoch' if schedule.epochs == 1 else 'epochs'}{' at most' if schedule.plateau else ''}",
        f"keys:     about {keys:,}, guessed from the first blocks; rows of {row_bytes} bytes, so a table of about "
        f"{format_size_up(table_bytes)}",
        f"memory:   {format_size_up(ram)} without the model: device {device}, host {format_size_up(storage.host)}, map "
        f"{format_size_up(storage.map)}, read {format_size_up(storage.read)}"
        + (f"; of all {setup.world} workers" if setup.world > 1 else ""),
        f"          device and host hold {held:.0%} of the table"
        + ("; the others are read from disk when they are needed" if held < 1 else ""),
        f"disk:     {format_size_up(storage.disk)} at most; such a table takes about "
        f"{format_size_up(int(STALE * table_bytes))} with the commits that are kept",
    ]
    advice = []
    for name, cap, needed in (
        ("map", storage.map, most_bytes_for(keys)), ("disk", storage.disk, int(STALE * table_bytes))
    ):  # fmt: skip
        if setup.world * cap < needed:
            size = format_size_up(-(-needed // setup.world))
            advice.append(f"storage.{name} may be too small: raise it to about {size!r}")
    return [*lines, *(advice or ["fits, by what is known before the run"])]


def estimated_keys(setup: Setup) -> int:
    """Guess of the total number of keys of all workers at the end of training."""
    fit, examples = setup.fit, setup.agenda.num_examples["train"]
    return setup.world * guessed_keys(fit.window, fit.block_batches * setup.workflow.schedule.batch_size, examples)


def _steps(setup: Setup) -> int:
    schedule = setup.workflow.schedule
    if setup.agenda.end.span is not None:
        return setup.agenda.steps_before(setup.agenda.end)
    return int(schedule.epochs * -(-setup.agenda.num_examples["train"] // schedule.batch_size))


def _others(setup: Setup) -> list[Line]:
    keys = max(setup.fit.window.keys_of_blocks, default=0)
    return other_buffers(setup.workflow, setup.agenda, setup.row, keys)
