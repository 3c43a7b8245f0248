"""Executor that forces an adverse order: a task can be held at its gate until other tasks have finished."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from support.runs.harness import make_driver

from pipeline.driver.loop import DueCommit
from pipeline.driver.result import table_and_model
from pipeline.errors import PipelineError
from pipeline.records import Refusal, StageResult
from pipeline.schedule import BlockSchedule, Task, edges
from pipeline.stages import STAGES
from pipeline.worker.flight import RingLengths
from pipeline.workflow import Workflow

Edges = Callable[[str, int, int], list[Task]]
Gate = Callable[[Task], list[Task]]
"""Returns the tasks that a task waits for in addition to its edges; unknown tasks are ignored."""


class GatedExecutor:
    """Executor that runs each task in its own thread when its edges allow it and the tasks of its gate have
    finished."""

    def __init__(self, call: Callable[[str, int], StageResult], blocks: range, gate: Gate) -> None:
        self._call = call
        self._gate = gate
        self._through = {(stage, i): threading.Event() for stage in STAGES for i in blocks}
        self._failed = threading.Event()
        self._threads = ThreadPoolExecutor(256)

    def submit(self, stage: str, number: int, after: list[Future[StageResult]]) -> Future[StageResult]:
        return self._threads.submit(self._run, stage, number, after)

    def _run(self, stage: str, number: int, after: list[Future[StageResult]]) -> StageResult:
        try:
            for future in after:
                future.result()
            for task in self._gate((stage, number)):
                self._pass(task)
            return self._call(stage, number)
        except BaseException:
            self._failed.set()
            raise
        finally:
            self._through[stage, number].set()

    def _pass(self, task: Task) -> None:
        while task in self._through and not self._through[task].wait(0.01) and not self._failed.is_set():
            pass

    def result(self, future: Future[StageResult]) -> StageResult:
        return future.result(timeout=60)

    def settle(self, futures: list[Future[StageResult]]) -> None:
        wait(futures)
        self._threads.shutdown()


def outcome(
    workflow: Workflow,
    run_dir: Path,
    gate: Gate = lambda task: [],
    edges: Edges = edges,
    rings: RingLengths | None = None,
    check_order: bool = True,
    **sizes: int,
) -> str:
    """Fingerprint of a run with these edges, rings and gates, or "raised ..." if a stage raised."""
    run_dir.mkdir(exist_ok=True)
    driver = make_driver(workflow, run_dir, **sizes)
    blocks = list(driver.agenda.blocks(workflow.schedule.block_batches))
    numbers = range(len(blocks))
    look_ahead = workflow.schedule.look_ahead
    # Prevent intermediate commits, so that all blocks form one stretch.
    driver.crew.worker.tiers.places.chunks.allowance = 1 << 30
    driver.crew.worker.tiers.places.caps = replace(driver.crew.worker.tiers.places.caps, disk_chunks=1 << 40)
    driver.crew.worker.stages.start(blocks, look_ahead, rings)
    if not check_order:
        driver.crew.worker.stages._expect = lambda stage, number: None  # type: ignore[method-assign]
    executor = GatedExecutor(driver.crew.worker.stages.run, numbers, gate)
    # Include `upload`, as if the device had separate memory.
    names = {*driver.crew.worker.stages.names, "upload"}
    stages = [stage for stage in STAGES if stage in names]
    schedule = BlockSchedule(numbers, look_ahead, stages, executor, _ignore, edges)
    try:
        refusal: Refusal | None = schedule.run()
    except PipelineError as error:
        driver.crew.worker.tiers.close()
        return f"raised {error}"
    executor.settle([])
    assert refusal is None
    driver.commit(DueCommit(None))
    digest, _ = table_and_model(driver.crew)
    driver.crew.worker.tiers.close()
    return digest


def _ignore(done: StageResult) -> None:
    """Ignore a stage's result: the run is inspected at the end."""
