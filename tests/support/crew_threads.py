"""Several workers in one process: each stage of each worker in a thread of its own, collectives over loopback.

What runs is the product's, but for `pipeline.cluster`: futures of threads stand for Dask's, and a parcel is taken from
where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from harness import SPEED, sizes_of
from loopback import make_groups, outcomes

from pipeline.comm.group import Group
from pipeline.commits.flush import live_at
from pipeline.commits.manifest import Manifest
from pipeline.data.agenda import agenda_of
from pipeline.data.source import Source
from pipeline.device.device import RAM
from pipeline.driver.driver import Driver
from pipeline.errors import LostTouch
from pipeline.monitor.metrics import Evaluation
from pipeline.monitor.progress import Progress
from pipeline.preflight.sizes import Fit
from pipeline.records import U32, U64, Array, Block, Closed, Done, Progressed, Refusal, Share
from pipeline.schedule import Schedule
from pipeline.storage.files import Files
from pipeline.storage.shards import Shards, deal
from pipeline.training.learner import least_last
from pipeline.worker.flight import Member
from pipeline.worker.worker import Opening, Worker
from pipeline.workflow import Workflow

NUM_SHARDS = 6
ONE = 0
"""In place of a number of workers: the one of a run without others, in the driver's process."""


class ThreadCrew:
    """`sizes` are harness.sizes_of's, of each worker."""

    dashboard = None

    def __init__(
        self, workflow: Workflow, run_dir: Path, driver: Driver, sizes: Sequence[Mapping[str, int]],
        gpus: Any = None,
    ) -> None:  # fmt: skip
        """`gpus`: has the `devices` of all workers, and makes `groups` for what lies in their memory."""
        self.world, self._gpus = len(sizes), gpus
        self.workers: list[Worker] = []
        self.before: Callable[[int, str, int], None] = lambda rank, stage, number: None
        self.after: Callable[[int, Done], None] = lambda rank, done: None
        """Both are called in the thread of a worker's stage, around each of its calls."""
        self._workflow, self._run_dir, self._driver, self._sizes = workflow, run_dir, driver, sizes

    def open(self, kept: Sequence[Manifest]) -> None:
        self.close()
        ranks = [str(rank) for rank in range(self.world)]
        owned = deal(NUM_SHARDS, ranks, dict.fromkeys(ranks, range(NUM_SHARDS)))
        self.owner_of_shard = tuple(
            next(int(rank) for rank in owned if shard in owned[rank]) for shard in range(NUM_SHARDS)
        )
        on_gpus = self._gpus.groups() if self._gpus else [None] * self.world
        # Not at once: initial weights are drawn from the one generator of the process.
        self.workers = [
            self._open_worker(kept, group, of_steps, owned[str(rank)])
            for rank, (group, of_steps) in enumerate(zip(make_groups(self.world), on_gpus, strict=True))
        ]

    def _open_worker(
        self, kept: Sequence[Manifest], group: Group, on_gpus: Group | None, mine: tuple[int, ...]
    ) -> Worker:
        workflow, rank = self._workflow, group.rank
        source = Source(workflow.data, workflow.seed, group=workflow.metrics.group)
        dense = self._driver.commits.load_dense(kept[-1], min(rank, len(kept[-1].dense) - 1)) if kept else None
        opening = Opening(
            sizes_of(workflow, **self._sizes[rank]), self._run_dir, SPEED, tuple(m.part(mine) for m in kept), dense,
            Shards(NUM_SHARDS, mine),
        )  # fmt: skip
        member = Member(Share(rank, self.world), self.owner_of_shard, group, on_gpus=on_gpus)
        device = self._gpus.devices[rank] if self._gpus else RAM
        return Worker(workflow, opening, source, device, Files(), member)

    def each(self, method: str, *args: Any) -> list[Any]:
        return [getattr(worker, method)(*args) for worker in self.workers]

    def first(self, method: str, *args: Any) -> Any:
        return getattr(self.workers[0], method)(*args)

    def replicas(self) -> Sequence[Mapping[str, Array]]:
        return self.each("dense") if self._workflow.optimizer.merge else self.each("dense")[:1]

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[Done], None]) -> Refusal | None:
        stages = self.each("start", blocks, look_ahead)[0]
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        executor = ThreadsExecutor(self, stages)
        try:
            refusal = Schedule(numbers, look_ahead, stages, executor, watch).run()
        finally:
            executor.close()
        for done in executor.drained(self.each("drain")):
            watch(done)
        return refusal

    def metrics(self, number: int, parts: Sequence[Closed]) -> dict[str, float]:
        """Of the split that this block closed; none where there was nothing but clipped rows to tell."""
        if not any(part.sums_3T for part in parts):
            return {}
        labels, grouped = self._workflow.data.labels, self._workflow.metrics.group is not None
        evaluation = Evaluation(labels, self._run_dir / "scores", grouped=grouped)
        for worker, part in zip(self.workers, parts, strict=True):
            evaluation.join(part, partial(scores_of, worker, number))
        return evaluation.result()

    def pause(self, why: str | None) -> None:
        self.each("pause", why)

    def restart(self) -> None:
        raise AssertionError("a worker in a thread does not get lost")

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
            worker.resources.source.close()


def scores_of(worker: Worker, number: int, table: int) -> Iterator[U64]:
    while (piece := worker.scores(number, table)) is not None:
        yield piece


class ThreadsExecutor:
    """A task of the schedule is one for each worker. A stage follows itself, so it has one thread."""

    def __init__(self, crew: ThreadCrew, stages: Sequence[str]) -> None:
        self._crew = crew
        self._threads = {(stage, rank): ThreadPoolExecutor(1) for stage in stages for rank in range(crew.world)}

    def submit(self, stage: str, number: int, after: list[list[Future[Done]]]) -> list[Future[Done]]:
        return [
            self._threads[stage, rank].submit(self._run, rank, stage, number, after) for rank in range(self._crew.world)
        ]

    def _run(self, rank: int, stage: str, number: int, after: list[list[Future[Done]]]) -> Done:
        # Parcels come from every worker.
        waits_for = [f for futures in after for f in (futures if stage == "unite" else [futures[rank]])]
        if any(future.exception() for future in waits_for):
            raise LostTouch(f"what {stage} of block {number} waits for failed")
        self._crew.before(rank, stage, number)
        resources = self._crew.workers[rank].resources
        if stage == "unite":
            resources.deliver(number, [worker.resources.parcel(number, rank) for worker in self._crew.workers])
        done = resources.run(stage, number)
        self._crew.after(rank, done)
        return done

    def result(self, futures: list[Future[Done]]) -> Done:
        """The first refusal of all, the mean loss, the metrics; the moves of the first worker."""
        return self.together(outcomes(futures))

    def together(self, dones: Sequence[Done]) -> Done:
        refusals = [done.refusal for done in dones if done.refusal]
        refusal = min(refusals, key=lambda r: (r.block.number, r.what == "pause"), default=None)
        trained = [done.trained for done in dones if done.trained]
        return replace(dones[0], refusal=refusal, trained=self._together(trained) if trained else None)

    def _together(self, trained: Sequence[Progressed]) -> Progressed:
        weight = sum(part.weight for part in trained)
        loss = sum(part.loss * part.weight for part in trained) / max(weight, 1e-300)
        closed = [part.closed for part in trained if part.closed]
        metrics = self._crew.metrics(trained[0].block.number, closed) if closed else {}
        return replace(trained[0], loss=loss, weight=weight, metrics=metrics, closed=None)

    def drained(self, of_each: Sequence[Sequence[Done]]) -> list[Done]:
        trained = zip(*([done for done in dones if done.trained] for dones in of_each), strict=True)
        return [self.together(dones) for dones in trained]

    def settle(self, futures: list[list[Future[Done]]]) -> None:
        wait([future for of_each in futures for future in of_each])

    def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown()


def make_crew_driver(
    workflow: Workflow, run_dir: Path, world: int, of_each: Sequence[Mapping[str, int]] = (), gpus: Any = None,
    **sizes: int,
) -> Driver:  # fmt: skip
    """`sizes` of all workers, or `of_each` its own; with `world` ONE a driver of one worker without others. `gpus`:
    see `ThreadCrew`."""
    workflow = workflow.model_copy(update={"workers": workflow.workers.model_copy(update={"shards": NUM_SHARDS})})
    source = Source(workflow.data, workflow.seed, group=workflow.metrics.group)
    schedule = workflow.schedule
    fit = Fit(sizes_of(workflow, **sizes), schedule.look_ahead, schedule.block_batches)
    total = agenda_of(workflow, source.num_examples, least_last(workflow, max(1, world))).total_examples
    each = of_each or [sizes] * world
    return Driver(
        workflow, source, fit, run_dir, None, Progress(total, stream=StringIO()), None, SPEED, RAM,
        (lambda driver, speed: ThreadCrew(workflow, run_dir, driver, each, gpus)) if world else None, max(1, world),
    )  # fmt: skip


@contextmanager
def crew_driver(workflow: Workflow, run_dir: Path, world: int, **sizes: Any) -> Iterator[Driver]:
    """A driver whose workers can be looked at until the end of the block."""
    driver = make_crew_driver(workflow, run_dir, world, **sizes)
    try:
        yield driver
    finally:
        driver.crew.close()
        driver._source.close()


def train(driver: Driver) -> None:
    """All of the run; its workers stay open, and their rows are in the logs."""
    driver._examples = 0
    driver._progress.begin_at(0)
    with driver._progress:
        assert driver._train() is None


def workers_of(driver: Driver) -> list[Worker]:
    crew: Any = driver.crew
    return [crew.worker] if crew.world == 1 and not isinstance(crew, ThreadCrew) else list(crew.workers)


def rows_of(driver: Driver) -> dict[int, U32]:
    """Words of each row, without its key and its tag, as it stands after the last step; all lie in the logs."""
    rows = {}
    for worker in workers_of(driver):
        r = worker.resources
        for chunk in r.places.chunks.live().tolist():
            at, keys_U = live_at(r.places, r.log, chunk)
            rows_UW = np.empty((len(at), r.row.num_words), np.uint32)
            r.log.gather(at, rows_UW)
            r.learner.rows.catch_up_on_host()(rows_UW)
            rows |= {key: row[2:-1] for key, row in zip(keys_U.tolist(), rows_UW, strict=True)}
    return rows
