"""Body of `pipeline replay`: open the data of a workflow or run, simulate or replay it, and return the hits."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.data.agenda import Agenda
from pipeline.device.gpu import choose
from pipeline.driver.open import shared_by
from pipeline.driver.result import WORKFLOW, read_result
from pipeline.driver.resume import begun_of
from pipeline.driver.stretches import STRETCHES, Opened, RunEvent, read_events
from pipeline.messages.sizes import format_size_up, parse_size
from pipeline.monitor.runs_table import RunsTable
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import Setup, after, caps, check, divide_caps
from pipeline.replay.capacities import Capacities
from pipeline.replay.grid import BoundCell, Cell, Grid
from pipeline.replay.record import OTHER_DATA, RecordedRun
from pipeline.replay.trace import FileTrace, shards_of
from pipeline.settings import read_json
from pipeline.settings.caps import CapSizes, caps_of
from pipeline.settings.changes import override
from pipeline.spans.calendar import Calendar
from pipeline.spans.passes import span_passes
from pipeline.stages.unique_keys import KeyReader
from pipeline.storage.shards import Shards
from pipeline.workflow import Workflow, load, without_removed

AS_IT_RAN = "as it ran"


@dataclass(frozen=True, slots=True)
class Found:
    """Result of the command: hits and traffic of all cells."""

    name: str
    cells: list[Cell]
    bounds: list[BoundCell]
    share: float
    equals_result: bool | None = None
    """True if the tiers of the replayed run equal those in its result.json; None if there is no result.json."""

    def table(self) -> str:
        """Table with one line per size and pair of policies, and one per bound, grouped by size."""
        order = list(dict.fromkeys(cell.size for cell in self.cells))
        lines: list[Cell | BoundCell] = sorted([*self.cells, *self.bounds], key=lambda line: order.index(line.size))
        table = RunsTable(1 << 16)
        table.must("size", [line.size for line in lines], left=True)
        table.must("rows in\nmemory", [format_size_up(line.memory_bytes) for line in lines])
        for place, tier in enumerate(("device", "host")):
            table.must(f"policy of\n{tier}", [line.policies[place] for line in lines], left=True)
        for head, tier in (("found on\ndevice", "device"), ("on device\nor host", "memory")):
            table.must(head, [_share(line.shares[tier], line.errors.get(tier)) for line in lines])
        table.must("rows read\nfrom disk", [f"{line.disk_reads:,}" for line in lines])
        return str(table)

    def as_json(self) -> dict[str, Any]:
        """The whole result as JSON values."""
        return {
            "name": self.name,
            "sample": self.share,
            "equals_result": self.equals_result,
            "cells": [cell.as_json() for cell in self.cells],
            "bounds": [bound.as_json() for bound in self.bounds],
        }


def replay(args: Namespace, share: float, pairs: Sequence[tuple[str, str]], say: Callable[[str], None]) -> Found:
    """Simulate or replay, according to the command's arguments. `share`: share of the keys to use; `pairs`: policies of
    device and host; empty: those of the workflow. `say` is called with warnings. Raises ValueError or OSError if an
    argument, the data or the record is wrong."""
    target, is_run = args.target, args.target.is_dir()
    # Check the record first: a run of an earlier version has none.
    has_workflow = args.workflow or (target / WORKFLOW).is_file()
    events = list(_events(target)) if is_run and has_workflow else []
    workflow = override(_workflow_of(target, args.workflow), args.set)
    world = args.workers or next((len(e.workers) for e in reversed(events) if isinstance(e, Opened)), 1)
    workflow = shared_by(workflow, world, None)
    if is_run and workflow.init_from:
        raise ValueError(
            f"{target} began from elsewhere (init_from), with rows whose keys its record does not have; replay the "
            "file of its workflow instead, as if it had begun with none"
        )
    begun = begun_of(target) if is_run else None
    checked = check(workflow, choose(workflow.device), say, world, begun=begun)
    reader = KeyReader(workflow.data, workflow.seed, workflow.schedule.threads, begun)
    try:
        cells, bounds, equals = list[Cell](), list[BoundCell](), None
        if is_run and share == 1 and not args.workers:
            cells.append(_as_it_ran(events, checked, reader))
            result = read_result(target)
            equals = None if result is None else result["tiers"] == cells[0].as_json()["tiers"]
        if not is_run or share < 1 or args.workers or pairs or args.sizes:
            shards = shards_of(workflow.workers.num_shards(world), world)
            grid = Grid(FileTrace(reader, checked.agenda, shards), share)
            checked = after([caps], checked)
            setups = [(text, _set_up(text, checked)) for text in args.sizes or ["1"]]
            for text, setup in setups:
                for pair in pairs or [(workflow.storage.device_policy, workflow.storage.host_policy)]:
                    grid.simulate(text, setup, pair)
                if not args.no_bound:
                    grid.look_at(setup.fit.block_batches)
            grid.run(say)
            bounds += [grid.bounds(text, setup.fit) for text, setup in setups if not args.no_bound]
            cells += grid.cells()
        return Found(workflow.name, cells, bounds, share, equals)
    finally:
        reader.close()
        checked.source.close()


def _workflow_of(target: Path, file_of_run: Path | None) -> Workflow:
    """Load the workflow. Raises ValueError if there is none or it is invalid."""
    if file_of_run or not target.is_dir():
        return load(file_of_run if file_of_run and target.is_dir() else target)
    file = target / WORKFLOW
    if not file.is_file():
        raise ValueError(f"{target} is not a run: it has no {WORKFLOW}; name a run directory or a workflow's file")
    try:
        return read_json(Workflow, json.dumps(without_removed(json.loads(file.read_bytes()))))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}; if its model is your own, name its file with --workflow") from error


def _events(run_dir: Path) -> list[RunEvent]:
    """Read the record of a run. Raises ValueError if it is missing or does not start with the opening of a run."""
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


def _set_up(text: str, checked: Checked) -> Setup:
    """Divide the caps of a size. Raises ValueError if it is malformed, or if a cap is too small."""
    return divide_caps(replace(checked, storage=_storage(text, caps_of(checked.storage))))


def _storage(text: str, storage: CapSizes) -> CapSizes:
    """The caps, with those of device and host replaced by a size. Raises ValueError if the text is not a valid size."""
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


def _as_it_ran(events: Sequence[RunEvent], checked: Checked, reader: KeyReader) -> Cell:
    """Replay a run from its record."""

    def trace_of(opened: Opened) -> FileTrace:
        examples, schedule = checked.source.num_examples, checked.workflow.schedule
        calendar, passes = checked.source.calendar, None
        if calendar and opened.spans is not None:
            # An earlier session had fewer spans.
            calendar = Calendar(calendar.labels[: opened.spans], calendar.num_rows[: opened.spans])
            examples = {**examples, "train": sum(calendar.num_rows)}
            passes = span_passes(checked.workflow, calendar, opened.scored)
        if opened.examples != examples:
            raise ValueError(
                f"the record does not fit these data: a session had {opened.examples} examples, and there are "
                f"{examples}; {OTHER_DATA}"
            )
        min_last_batch = checked.dense.min_last_batch(schedule.batch_size, len(opened.workers))
        agenda = Agenda(examples, schedule.batch_size, opened.epochs, opened.test_apart, min_last_batch, passes=passes)
        return FileTrace(reader, agenda, [Shards(worker.num_shards, worker.shards) for worker in opened.workers])

    run = RecordedRun(trace_of)
    run.follow(events)
    last = [event for event in events if isinstance(event, Opened)][-1]
    workers = last.workers
    sums = {name: sum(getattr(w, name) for w in workers) for name in ("device_rows", "host_rows", "disk_chunks")}
    whole = Capacities(**sums, chunk_rows=workers[0].chunk_rows)
    return Cell(AS_IT_RAN, last.policies, whole, checked.row.num_bytes, run.totals.counts(), run.totals.chunks)


def _share(share: float, error: float | None) -> str:
    return f"{share:.2%}" if error is None else f"{share:.2%} ± {error:.2%}"
