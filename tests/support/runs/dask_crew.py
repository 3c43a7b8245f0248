"""A driver whose workers are processes of a local Dask cluster, for tests of small workflows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.runs.harness import SPEED, setup_of

from pipeline.cluster.pool import WorkerPool
from pipeline.data.source import Source
from pipeline.driver.driver import Driver
from pipeline.driver.open import dask_crew
from pipeline.monitor.progress import Progress
from pipeline.storage.files import Files
from pipeline.storage.folder import Folder
from pipeline.workflow import Workflow


class Lines(Progress):
    """Progress that keeps all lines, and calls `at_block` at every update."""

    def __init__(self, total: int, at_block: Callable[[int], None] = lambda examples: None) -> None:
        super().__init__(total, stream=None)
        self.lines: list[str] = []
        self._at_block = at_block

    def line(self, text: str) -> None:
        self.lines.append(text)

    def update(self, examples: int, loss: float) -> None:
        self._at_block(examples)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *args: Any) -> None:
        pass


def crew_driver(
    workflow: Workflow, run_dir: Path, pool: WorkerPool, at_block: Callable[[int], None] = lambda examples: None,
    source: Source | None = None, **sizes: int,
) -> Driver:  # fmt: skip
    source = source or Source(workflow.data, workflow.seed, metrics=workflow.metrics)
    setup = setup_of(workflow, source, pool.world, **sizes)
    progress = Lines(setup.agenda.total_examples, at_block)
    run_dir.mkdir(exist_ok=True)
    return Driver(
        setup, source, Folder(run_dir, Files(), SPEED), dask_crew(setup, source, pool), progress=progress
    ).open()
