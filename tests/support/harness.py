"""Runs a workflow with slabs of a given number of rows, however many bytes that is."""

from __future__ import annotations

import tempfile
from io import StringIO
from pathlib import Path
from typing import Any

from pipeline.data.agenda import Agenda
from pipeline.data.source import Source
from pipeline.device.device import Device
from pipeline.driver.driver import Driver
from pipeline.monitor.progress import Progress
from pipeline.preflight.sizes import Fit, Sizes
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.shards import Shards
from pipeline.training.learner import row_layout
from pipeline.workflow import Workflow


def sizes_of(
    workflow: Workflow, device_rows: int = 4096, host_rows: int = 4096, ring_rows: int = 2048, chunk_rows: int = 4,
    disk_chunks: int = 1 << 20, map_bytes: int = 1 << 24,
) -> Sizes:  # fmt: skip
    """Sizes that no caps in bytes would give; a ring buffer has `ring_rows` rows."""
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


SPEED = DiskSpeed(seconds_per_read=6e-6, bytes_per_second=1e9)


def make_driver(
    workflow: Workflow, run_dir: Path, client: Any = None, files: Files | None = None, device: Device | None = None,
    shards: Shards | None = None, **sizes: int,
) -> Driver:  # fmt: skip
    source = Source(workflow.data, workflow.seed, group=workflow.metrics.group)
    schedule = workflow.schedule
    fit = Fit(sizes_of(workflow, **sizes), schedule.look_ahead, schedule.block_batches)
    agenda = Agenda(source.num_examples, schedule.batch_size, schedule.epochs)
    progress = Progress(agenda.total_examples, stream=StringIO())
    num_shards = shards.num if shards else None
    workflow = workflow.model_copy(update={"workers": workflow.workers.model_copy(update={"shards": num_shards})})
    return Driver(workflow, source, fit, run_dir, client, progress, files, SPEED, device)


def run(
    workflow: Workflow, client: Any = None, device: Device | None = None, shards: Shards | None = None, **sizes: int
) -> dict[str, Any]:
    """The result of a run in a directory that is gone afterwards."""
    with tempfile.TemporaryDirectory() as run_dir:
        result = make_driver(workflow, Path(run_dir), client, device=device, shards=shards, **sizes).run()
        assert result is not None
        return result
