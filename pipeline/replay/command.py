"""Steps of `pipeline replay`: open the data of a workflow or run, simulate it, and return the hits."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.device.gpu import choose
from pipeline.driver.open import shared_by
from pipeline.driver.result import WORKFLOW
from pipeline.driver.resume import begun_of
from pipeline.messages.sizes import format_size_up, parse_size
from pipeline.monitor.runs_table import RunsTable
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import after, caps, check, divide_caps
from pipeline.replay.grid import BoundCell, Cell, Grid, GridSize
from pipeline.replay.trace import FileTrace, shards_of
from pipeline.settings import read_json
from pipeline.settings.caps import CapSizes, caps_of
from pipeline.settings.changes import override
from pipeline.stages.unique_keys import KeyReader
from pipeline.workflow import Workflow, load, without_removed


@dataclass(frozen=True, slots=True)
class Found:
    """Hits and traffic of all cells."""

    name: str
    cells: list[Cell]
    bounds: list[BoundCell]
    share: float

    def table(self) -> str:
        return hits_table(self.cells, self.bounds)

    def as_json(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "name": self.name,
            "sample": self.share,
            "cells": [cell.as_json() for cell in self.cells],
            "bounds": [bound.as_json() for bound in self.bounds],
        }


def replay(args: Namespace, share: float, pairs: Sequence[tuple[str, str]], say: Callable[[str], None]) -> Found:
    """Simulate as the arguments of the command ask. `share`: of the keys; `pairs`: policies of device and host; empty:
    those of the workflow. `say` is called with warnings. Raises ValueError and OSError if an argument or the data are
    wrong."""
    target, world = args.target, args.workers or 1
    workflow = shared_by(override(_workflow_of(target, args.workflow), args.set), world, None)
    begun = begun_of(target) if target.is_dir() else None
    checked = check(workflow, choose(workflow.device), say, world, begun=begun)
    reader = KeyReader(workflow.data, workflow.seed, workflow.schedule.threads, begun)
    try:
        shards = shards_of(workflow.workers.num_shards(world), world)
        grid = Grid(FileTrace(reader, checked.agenda, shards), workflow, share)
        checked = after([caps], checked)
        sizes = [_size(text, checked) for text in args.sizes or ["1"]]
        for size in sizes:
            for pair in pairs or [(workflow.storage.device_policy, workflow.storage.host_policy)]:
                grid.simulate(size, pair)
            if not args.no_bound:
                grid.look_at(size.block_batches)
        grid.run(say)
        bounds = [grid.bounds(size) for size in sizes if not args.no_bound]
        return Found(workflow.name, list(grid.cells()), bounds, share)
    finally:
        reader.close()
        checked.source.close()


def _workflow_of(target: Path, file_of_run: Path | None) -> Workflow:
    """Load the workflow. Raises ValueError if there is none."""
    if file_of_run or not target.is_dir():
        return load(file_of_run if file_of_run and target.is_dir() else target)
    file = target / WORKFLOW
    if not file.is_file():
        raise ValueError(f"{target} is not a run: it has no {WORKFLOW}; name a run directory or a workflow's file")
    try:
        return read_json(Workflow, json.dumps(without_removed(json.loads(file.read_bytes()))))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}; if its model is your own, name its file with --workflow") from error


def _size(text: str, checked: Checked) -> GridSize:
    """Divide the caps of a size. Raises ValueError if it is malformed, or if a cap is too small."""
    storage = _storage(text, caps_of(checked.storage))
    fit = divide_caps(replace(checked, storage=storage)).fit
    return GridSize(text, storage, fit.sizes, fit.look_ahead, fit.block_batches)


def _storage(text: str, storage: CapSizes) -> CapSizes:
    """The caps with those of the device and the host changed. Raises ValueError if the text is none of a size."""
    device_text, colon, host_text = text.partition(":")
    try:
        if colon:
            device, host = (int(str(parse_size(part))) for part in (device_text, host_text))
        else:
            factor = Fraction(text)
            device, host = int(factor * storage.device), int(factor * storage.host)
    except (ValueError, ZeroDivisionError):
        device = host = 0
    if device <= 0 or host <= 0:
        raise ValueError(f"--sizes {text}: expected DEVICE:HOST, such as '1 GiB:4 GiB', or a factor, such as 1/2")
    return storage.model_copy(update={"device": device, "host": host})


def hits_table(cells: Sequence[Cell], bounds: Sequence[BoundCell]) -> str:
    """Table with a line for each size and pair of policies, and for each bound, those of a size together."""
    order = list(dict.fromkeys(cell.size for cell in cells))
    lines: list[Cell | BoundCell] = sorted([*cells, *bounds], key=lambda line: order.index(line.size))
    table = RunsTable(1 << 16)
    table.must("size", [line.size for line in lines], left=True)
    table.must("rows in\nmemory", [format_size_up(line.memory_bytes) for line in lines])
    for place, tier in enumerate(("device", "host")):
        table.must(f"policy of\n{tier}", [line.policies[place] for line in lines], left=True)
    for head, tier in (("found on\ndevice", "device"), ("on device\nor host", "memory")):
        table.must(head, [_share(line.shares[tier], line.errors.get(tier)) for line in lines])
    table.must("rows read\nfrom disk", [f"{line.disk_reads:,}" for line in lines])
    return str(table)


def _share(share: float, error: float | None) -> str:
    return f"{share:.2%}" if error is None else f"{share:.2%} ± {error:.2%}"
