"""Runs of a workflow with slabs of a given number of rows, regardless of their bytes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from pipeline.data.source import Source
from pipeline.device.device import Device
from pipeline.device.gpu import choose
from pipeline.driver.driver import Driver
from pipeline.driver.open import local_crew
from pipeline.driver.resume import begun_of
from pipeline.monitor.progress import Progress
from pipeline.preflight.check_model import facts_of
from pipeline.preflight.setup import Setup, agenda_of
from pipeline.preflight.sizes import Fit, Sizes
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.folder import Folder
from pipeline.storage.shards import Shards
from pipeline.training.build import build_model, row_layout
from pipeline.workflow import Storage, Workflow


def sizes_of(
    workflow: Workflow, device_rows: int = 4096, host_rows: int = 4096, ring_rows: int = 2048, chunk_rows: int = 4,
    disk_chunks: int = 1 << 20, map_bytes: int = 1 << 24,
) -> Sizes:  # fmt: skip
    """Sizes that no caps in bytes would produce; a ring buffer has `ring_rows` rows."""
    return Sizes(
        row_bytes=row_layout(workflow).num_bytes,
        device_rows=device_rows,
        outgoing_rows=ring_rows,
        host_rows=host_rows,
        staging_rows=ring_rows,
        chunk_rows=chunk_rows,
        disk_chunks=disk_chunks,
        read_ring_bytes=workflow.storage.read,
        window_bytes=1 << 20,
        map_bytes=map_bytes,
    )


THREE_TIERS = {"device_rows": 130, "host_rows": 24, "chunk_rows": 4}
"""Rows of slabs so few that keys of the small data go through device, host and disk."""
SPEED = DiskSpeed(seconds_per_read=6e-6, bytes_per_second=1e9)


def setup_of(workflow: Workflow, source: Source, world: int = 1, **sizes: int) -> Setup:
    """Setup of a run with such sizes."""
    if workflow.storage.leaves_out:
        storage = Storage(device=1 << 26, host=1 << 26, disk=1 << 30)
        workflow = workflow.model_copy(update={"storage": storage})
    row, schedule = row_layout(workflow), workflow.schedule
    given = sizes_of(workflow, **sizes)
    fit = Fit(given, schedule.look_ahead, schedule.block_batches)
    facts = facts_of(workflow, build_model(workflow))
    agenda = agenda_of(workflow, source.num_examples, facts, world, source.calendar)
    return Setup(workflow, world, workflow.storage, row, agenda, fit)


def make_driver(
    workflow: Workflow, run_dir: Path, client: Any = None, files: Files | None = None, device: Device | None = None,
    shards: Shards | None = None, extend: tuple[str, ...] = (), **sizes: int,
) -> Driver:  # fmt: skip
    """Open driver of a run. A run with spans continues from the commits in its folder."""
    num_shards = shards.num if shards else None
    workflow = workflow.model_copy(update={"workers": workflow.workers.model_copy(update={"shards": num_shards})})
    begun = replace(begun_of(run_dir), extend=extend) if workflow.data.spans_by else None
    source = Source(workflow.data, workflow.seed, metrics=workflow.metrics, begun=begun)
    setup = setup_of(workflow, source, **sizes)
    progress = Progress(setup.agenda.total_examples, stream=StringIO())
    device, files = device or choose(workflow.device), files or Files(cached=not workflow.storage.direct)
    crew = local_crew(setup, source, device, client)
    return Driver(setup, source, Folder(run_dir, files, SPEED), crew, device.model, progress).open()


def run(
    workflow: Workflow, client: Any = None, device: Device | None = None, shards: Shards | None = None, **sizes: int
) -> dict[str, Any]:
    """Result of a run in a temporary directory."""
    with tempfile.TemporaryDirectory() as run_dir:
        result = make_driver(workflow, Path(run_dir), client, device=device, shards=shards, **sizes).run()
        assert result is not None
        return result


def printed(driver: Driver) -> str:
    """All lines that the driver of `make_driver` has printed."""
    return str(driver.progress._stream.getvalue())
