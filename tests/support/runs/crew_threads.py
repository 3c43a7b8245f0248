"""Several workers in one process: each stage of each worker runs in its own thread, and collectives use loopback.

All code except `pipeline.cluster` is the product's: futures of threads replace those of Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from support.runs.harness import SPEED, setup_of, sizes_of
from support.runs.loopback import make_groups, outcomes

from pipeline.cluster.merge import Merge
from pipeline.comm.group import Group
from pipeline.commits.flush import live_at
from pipeline.commits.manifest import Commits, Manifest
from pipeline.data.source import Source
from pipeline.device.device import RAM
from pipeline.driver.driver import Driver, MakeCrew
from pipeline.driver.open import local_crew
from pipeline.errors import LostTouch
from pipeline.monitor.progress import Progress
from pipeline.preflight.setup import Setup
from pipeline.records import U32, U64, Array, Block, Rank, Refusal, StageResult
from pipeline.schedule import BlockSchedule
from pipeline.storage.files import Files
from pipeline.storage.folder import Folder
from pipeline.storage.shards import Shards, deal_shards
from pipeline.worker.tiers import Membership, WorkerConfig
from pipeline.worker.worker import Worker
from pipeline.workflow import Workflow

NUM_SHARDS = 6
ONE = 0
"""Special number of workers: a single worker in the driver's process, as in a run without others."""


class ThreadCrew:
    """Crew of workers in threads. `sizes`: arguments of harness.sizes_of for each worker."""

    dashboard = None
    page = None
    overlaps = True

    def __init__(
        self, setup: Setup, run_dir: Path, commits: Commits, sizes: Sequence[Mapping[str, int]], gpus: Any = None,
    ) -> None:  # fmt: skip
        """`gpus`: an object with the `devices` of all workers, whose `groups` are process groups for their memory."""
        self.world, self._gpus = len(sizes), gpus
        self.workers: list[Worker] = []
        self.before: Callable[[int, str, int], None] = lambda rank, stage, number: None
        self.after: Callable[[int, StageResult], None] = lambda rank, done: None
        """`before` and `after` are called around each call of a stage, in that stage's thread."""
        self._setup, self._workflow, self._run_dir = setup, setup.workflow, run_dir
        self._commits, self._sizes = commits, sizes

    def open(self, kept: Sequence[Manifest]) -> None:
        self.close()
        ranks = [str(rank) for rank in range(self.world)]
        owned = deal_shards(NUM_SHARDS, ranks, dict.fromkeys(ranks, range(NUM_SHARDS)))
        self.owner_of_shard = tuple(
            next(int(rank) for rank in owned if shard in owned[rank]) for shard in range(NUM_SHARDS)
        )
        on_gpus = self._gpus.groups() if self._gpus else [None] * self.world
        # Open them one after another: initial weights are drawn from the only random generator of the process.
        self.workers = [
            self._open_worker(kept, group, for_keys, for_steps, owned[str(rank)])
            for rank, (group, for_keys, for_steps) in enumerate(
                zip(make_groups(self.world), make_groups(self.world), on_gpus, strict=True)
            )
        ]

    def _open_worker(
        self, kept: Sequence[Manifest], group: Group, for_keys: Group, on_gpus: Group | None, mine: tuple[int, ...]
    ) -> Worker:
        workflow, rank = self._workflow, group.rank
        source = Source(workflow.data, workflow.seed, metrics=workflow.metrics)
        dense = self._commits.load_dense(kept[-1], min(rank, len(kept[-1].dense) - 1)) if kept else None
        config = WorkerConfig(
            sizes_of(workflow, **self._sizes[rank]), self._setup.row, self._setup.agenda.steps_of_epoch,
            self._setup.agenda.largest_batch, self._run_dir, SPEED, tuple(m.part(mine) for m in kept), dense,
            Shards(NUM_SHARDS, mine),
        )  # fmt: skip
        membership = Membership(Rank(rank, self.world), self.owner_of_shard, group, for_keys, on_gpus=on_gpus)
        device = self._gpus.devices[rank] if self._gpus else RAM
        return Worker(workflow, config, source, device, Files(), membership)

    def each(self, method: Callable[..., Any], *args: Any, **named: Any) -> list[Any]:
        return [method(worker, *args, **named) for worker in self.workers]

    def first(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return method(self.workers[0], *args, **named)

    def replicas(self) -> Sequence[Mapping[str, Array]]:
        return self.each(Worker.dense) if self._workflow.optimizer.merge else self.each(Worker.dense)[:1]

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[StageResult], None]) -> Refusal | None:
        stages = self.each(Worker.start, blocks, look_ahead)[0]
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        merge = Merge(self._workflow, self._scores, watch)
        executor = ThreadsExecutor(self, stages, merge.together)
        try:
            refusal = BlockSchedule(numbers, look_ahead, stages, executor, merge.report).run()
        finally:
            executor.close()
        merge.end(self.each(Worker.drain))
        return refusal

    def _scores(self, rank: int, number: int, table: int) -> Iterator[U64]:
        while (piece := self.workers[rank].scores(number, table)) is not None:
            yield piece

    def pause(self, why: str | None) -> None:
        self.each(Worker.pause, why)

    def interrupt(self, why: str) -> None:
        pass

    def restart(self) -> None:
        raise AssertionError("a worker in a thread does not get lost")

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
            worker.stages.source.close()


class ThreadsExecutor:
    """Executor that runs each task of the schedule on every worker. Calls of a stage run one after another, so one
    thread per stage and worker is enough."""

    def __init__(
        self, crew: ThreadCrew, stages: Sequence[str], together: Callable[[Sequence[StageResult]], StageResult]
    ) -> None:
        self._crew, self._together = crew, together
        self._threads = {(stage, rank): ThreadPoolExecutor(1) for stage in stages for rank in range(crew.world)}

    def submit(self, stage: str, number: int, after: list[list[Future[StageResult]]]) -> list[Future[StageResult]]:
        return [
            self._threads[stage, rank].submit(self._run, rank, stage, number, after) for rank in range(self._crew.world)
        ]

    def _run(self, rank: int, stage: str, number: int, after: list[list[Future[StageResult]]]) -> StageResult:
        if any(futures[rank].exception() for futures in after):
            raise LostTouch(f"what {stage} of block {number} waits for failed")
        self._crew.before(rank, stage, number)
        done = self._crew.workers[rank].stages.run(stage, number)
        self._crew.after(rank, done)
        return done

    def result(self, futures: list[Future[StageResult]]) -> StageResult:
        return self._together(outcomes(futures))

    def settle(self, futures: list[list[Future[StageResult]]]) -> None:
        wait([future for of_each in futures for future in of_each])

    def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown()


def make_crew_driver(
    workflow: Workflow, run_dir: Path, world: int, of_each: Sequence[Mapping[str, int]] = (), gpus: Any = None,
    **sizes: int,
) -> Driver:  # fmt: skip
    """Make a driver of `world` workers, with the same `sizes` for all or individual ones in `of_each`; if `world` is
    ONE, a driver of a single worker. `gpus`: see `ThreadCrew`."""
    workflow = workflow.model_copy(update={"workers": workflow.workers.model_copy(update={"shards": NUM_SHARDS})})
    source = Source(workflow.data, workflow.seed, metrics=workflow.metrics)
    setup = setup_of(workflow, source, max(1, world), **sizes)
    each = of_each or [sizes] * world
    make: MakeCrew = local_crew(setup, source, RAM)
    if world:
        make = lambda folder, commits: ThreadCrew(setup, folder.path, commits, each, gpus)  # noqa: E731
    progress = Progress(setup.agenda.total_examples, stream=StringIO())
    return Driver(setup, source, Folder(run_dir, Files(), SPEED), make, progress=progress).open()


@contextmanager
def crew_driver(workflow: Workflow, run_dir: Path, world: int, **sizes: Any) -> Iterator[Driver]:
    """Yield a driver whose workers can be inspected until the end of the `with` block."""
    driver = make_crew_driver(workflow, run_dir, world, **sizes)
    try:
        yield driver
    finally:
        driver.crew.close()
        driver._source.close()


def train(driver: Driver) -> None:
    """Train the whole run. Afterwards the workers are still open, and their rows are in the logs."""
    driver.begin()
    with driver.progress:
        assert driver.train() is None


def workers_of(driver: Driver) -> list[Worker]:
    crew: Any = driver.crew
    return [crew.worker] if crew.world == 1 and not isinstance(crew, ThreadCrew) else list(crew.workers)


def rows_of(driver: Driver) -> dict[int, U32]:
    """Words of each row after the last step, without its key and tag; all rows are in the logs."""
    rows = {}
    for worker in workers_of(driver):
        r = worker.tiers
        for chunk in r.places.chunks.live().tolist():
            at, keys_U = live_at(r.places, r.log, chunk)
            rows_UW = np.empty((len(at), r.row.num_words), np.uint32)
            r.log.gather(at, rows_UW)
            r.learner.rows.catch_up_on_host()(rows_UW)
            rows |= {key: row[2:-1] for key, row in zip(keys_U.tolist(), rows_UW, strict=True)}
    return rows
