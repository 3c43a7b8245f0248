"""A driver whose workers are processes of a local Dask cluster, for tests of small workflows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import SPEED, sizes_of

from pipeline.cluster.dask_crew import DaskCrew
from pipeline.cluster.pool import Pool
from pipeline.data.agenda import agenda_of
from pipeline.data.source import Source
from pipeline.driver.driver import Driver
from pipeline.monitor.progress import Progress
from pipeline.preflight.sizes import Fit
from pipeline.workflow import Workflow


class Lines(Progress):
    """Keeps what it is told, and calls back at every block."""

    def __init__(self, total: int, at_block: Callable[[int], None] = lambda examples: None) -> None:
        super().__init__(total, stream=None)
        self.lines: list[str] = []
        self._at_block = at_block

    def line(self, text: str) -> None:
        self.lines.append(text)

    def update(self, examples: int, loss: float, ready: int) -> None:
        self._at_block(examples)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *args: Any) -> None:
        pass


def crew_driver(
    workflow: Workflow, run_dir: Path, pool: Pool, at_block: Callable[[int], None] = lambda examples: None,
    source: Source | None = None, **sizes: int,
) -> Driver:  # fmt: skip
    source = source or Source(workflow.data, workflow.seed, group=workflow.metrics.group)
    schedule = workflow.schedule
    fit = Fit(sizes_of(workflow, **sizes), schedule.look_ahead, schedule.block_batches)
    progress = Lines(agenda_of(workflow, source.num_examples).total_examples, at_block)
    run_dir.mkdir(exist_ok=True)

    def crew(driver: Driver, speed: Any) -> DaskCrew:
        return DaskCrew(pool, workflow, pool.team, fit.sizes, run_dir, driver.commits, speed, source.identity)

    return Driver(workflow, source, fit, run_dir, None, progress, None, SPEED, crew=crew, world=pool.world)
