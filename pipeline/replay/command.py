"""Steps of `pipeline replay`: open the data of a workflow or run, simulate or replay it, and hold what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.data.agenda import Agenda
from pipeline.device.gpu import choose
from pipeline.driver.open import shared_by
from pipeline.driver.result import WORKFLOW, read_result
from pipeline.driver.stretches import STRETCHES, Opened, RunEvent, read_events
from pipeline.messages.sizes import parse_size
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import after, caps, check, divide_caps
from pipeline.replay.grid import AllWorkers, BoundCell, Cell, Grid, GridSize, cell_of
from pipeline.replay.picture import svg
from pipeline.replay.record import OTHER_DATA, RecordedRun
from pipeline.replay.table import hits_table
from pipeline.replay.trace import FileTrace, shards_of
from pipeline.settings import read_json
from pipeline.settings.caps import CapSizes, caps_of
from pipeline.settings.changes import override
from pipeline.stages.unique_keys import KeyReader
from pipeline.storage.shards import Shards
from pipeline.workflow import Workflow, load, without_removed

AS_IT_RAN = "as it ran"


@dataclass(frozen=True, slots=True)
class Order:
    """Arguments of the command."""

    target: Path
    workflow: Path | None
    settings: Sequence[str]
    workers: int | None
    share: float
    policies: Sequence[tuple[str, str]]
    """Pairs of device and host; empty: those of the workflow."""
    sizes: Sequence[str]
    bounds: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Hits and traffic of all cells."""

    name: str
    cells: list[Cell]
    bounds: list[BoundCell]
    share: float
    equals_result: bool | None = None
    """True if the tiers of the replayed run are those of its result.json; None if there is none."""

    def table(self) -> str:
        return hits_table(self.cells, self.bounds)

    def picture(self) -> str:
        return svg(self.name, self.cells, self.bounds)

    def as_json(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "name": self.name,
            "sample": self.share,
            "equals_result": self.equals_result,
            "cells": [cell.as_json() for cell in self.cells],
            "bounds": [bound.as_json() for bound in self.bounds],
        }


def replay(order: Order, say: Callable[[str], None]) -> Found:
    """Do what the command is asked for. `say` is called with warnings. Raises ValueError and OSError if an argument,
    the data or the record are wrong."""
    is_run = order.target.is_dir()
    # The record comes first: a run of an earlier version has none.
    has_workflow = order.workflow or (order.target / WORKFLOW).is_file()
    events = list(_events(order.target)) if is_run and has_workflow else []
    workflow = override(_workflow_of(order, is_run), order.settings)
    world = order.workers or next((len(e.workers) for e in reversed(events) if isinstance(e, Opened)), 1)
    workflow = shared_by(workflow, world, None)
    device = choose(workflow.device)
    checked = check(workflow, device, say, world)
    reader = KeyReader(workflow.data, workflow.seed, workflow.schedule.threads)
    try:
        cells: list[Cell] = []
        bounds: list[BoundCell] = []
        equals = None
        if is_run and order.share == 1 and not order.workers:
            cells.append(_as_it_ran(events, checked, reader))
            equals = _equals_result(cells[0], order.target)
        if not is_run or order.share < 1 or order.workers or order.policies or order.sizes:
            shards = shards_of(workflow.workers.num_shards(world), world)
            grid = Grid(FileTrace(reader, checked.agenda, shards), workflow, order.share)
            checked = after([caps], checked)
            sizes = [_size(text, checked) for text in order.sizes or ["1"]]
            bounds += _simulate(grid, order, workflow, sizes, say)
            cells += grid.cells()
        return Found(workflow.name, cells, bounds, order.share, equals)
    finally:
        reader.close()
        checked.source.close()


def _workflow_of(order: Order, is_run: bool) -> Workflow:
    """Load the workflow. Raises ValueError if there is none."""
    if not is_run:
        return load(order.target)
    if order.workflow:
        return load(order.workflow)
    file = order.target / WORKFLOW
    if not file.is_file():
        raise ValueError(
            f"{order.target} is not a run: it has no {WORKFLOW}; name a run directory or a workflow's file"
        )
    try:
        return read_json(Workflow, json.dumps(without_removed(json.loads(file.read_bytes()))))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}; if its model is your own, name its file with --workflow") from error


def _events(run_dir: Path) -> list[RunEvent]:
    """Read the record of a run. Raises ValueError if it has none."""
    if not (run_dir / STRETCHES).is_file():
        raise ValueError(
            f"{run_dir} has no {STRETCHES}, since an earlier version trained it; replay the workflow's file instead"
        )
    events = list(read_events(run_dir / STRETCHES))
    if not events or not isinstance(events[0], Opened):
        raise ValueError(
            f"{run_dir / STRETCHES} does not begin with the opening of a run; replay the workflow's file instead"
        )
    return events


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


def _simulate(
    grid: Grid, order: Order, workflow: Workflow, sizes: Sequence[GridSize], say: Callable[[str], None]
) -> list[BoundCell]:
    """Simulate all pairs of policies with all sizes; returns the bounds. `say` is called with the progress."""
    own = (workflow.storage.device_policy, workflow.storage.host_policy)
    for size in sizes:
        for pair in order.policies or [own]:
            grid.simulate(size, pair)
        if order.bounds:
            grid.look_at(size.block_batches)
    grid.run(say)
    return [grid.bounds(size) for size in sizes] if order.bounds else []


def _as_it_ran(events: Sequence[RunEvent], checked: Checked, reader: KeyReader) -> Cell:
    """Replay a run by its record."""

    def trace_of(opened: Opened) -> FileTrace:
        examples, schedule = checked.source.num_examples, checked.workflow.schedule
        if opened.examples != examples:
            raise ValueError(
                f"the record does not fit these data: a session had {opened.examples} examples, and there are "
                f"{examples}; {OTHER_DATA}"
            )
        min_last_batch = checked.dense.min_last_batch(schedule.batch_size, len(opened.workers))
        agenda = Agenda(examples, schedule.batch_size, opened.epochs, opened.test_apart, min_last_batch)
        return FileTrace(reader, agenda, [Shards(worker.num_shards, worker.shards) for worker in opened.workers])

    run = RecordedRun(trace_of)
    for _ in run.follow(events):
        pass
    last = [event for event in events if isinstance(event, Opened)][-1]
    totals, workers = run.totals, last.workers
    device, host, disk = (
        sum(sizes) for sizes in zip(*((w.device_rows, w.host_rows, w.disk_chunks) for w in workers), strict=True)
    )
    whole = AllWorkers(device, host, disk, workers[0].chunk_rows, checked.row.num_bytes)
    return cell_of(AS_IT_RAN, last.policies, whole, totals.counts(), totals.chunks, {}, None)


def _equals_result(cell: Cell, run_dir: Path) -> bool | None:
    result = read_result(run_dir)
    return None if result is None else result["tiers"] == cell.as_json()["tiers"]
