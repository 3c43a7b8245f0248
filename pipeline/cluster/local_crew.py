"""The crew of a run with a single worker, in the driver's own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate

from pipeline.cluster.crew import P, T, replicas_for
from pipeline.cluster.threads import ThreadExecutor
from pipeline.commits.manifest import Commits, Manifest
from pipeline.data.source import Source
from pipeline.device.device import Device
from pipeline.preflight.setup import Setup
from pipeline.preflight.sizes import DoesNotFit, no_room
from pipeline.records import Array, Block, Refusal, StageResult
from pipeline.schedule import BlockSchedule, Executor, SerialExecutor
from pipeline.storage.folder import Folder
from pipeline.storage.shards import Shards
from pipeline.worker.tiers import WorkerConfig
from pipeline.worker.worker import Worker

THREADS = "threads"


class LocalCrew:
    """One worker in this process. Its stages run sequentially, on threads, or on Dask."""

    world = 1

    def __init__(
        self, setup: Setup, source: Source, folder: Folder, commits: Commits, device: Device, executor: Any = None
    ) -> None:
        """`executor`: None for sequential stages, THREADS, or a client of Dask in this process."""
        self._setup, self._source, self._folder, self._commits = setup, source, folder, commits
        self._device, self._executor = device, executor
        self._worker: Worker | None = None
        self.dashboard: str | None = None
        self.sizes = setup.fit.sizes
        self.overlaps = executor is not None
        if executor not in (None, THREADS):
            # Imported here, since importing Dask takes half a second, and the other executors do not need it.
            from pipeline.cluster.dashboard import dashboard_link

            self.dashboard = dashboard_link(executor)

    @property
    def worker(self) -> Worker:
        assert self._worker
        return self._worker

    def open(self, kept: Sequence[Manifest]) -> None:
        if self._worker:
            self.close()
            self._device.release_memory()
        setup = self._setup
        num_shards = kept[-1].num_shards if kept else setup.workflow.workers.num_shards(1)
        (dense,) = replicas_for(1, self._commits, kept)
        config = WorkerConfig(
            self.sizes, setup.row, setup.agenda.steps_of_epoch, setup.agenda.largest_batch, self._folder.path,
            self._folder.measured, tuple(kept), dense, Shards.all(num_shards),
            scores=setup.scoring is not None,
        )  # fmt: skip
        try:
            self._worker = Worker(setup.workflow, config, self._source, self._device, self._folder.files)
        except MemoryError as error:
            raise DoesNotFit(no_room(error, self.sizes, setup.fit.look_ahead, self._device)) from error

    def each(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> list[T]:
        return [self.first(method, *args, **named)]

    def first(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> T:
        return method(self.worker, *args, **named)

    def replicas(self) -> Sequence[Mapping[str, Array]]:
        return [self.worker.dense()]

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[StageResult], None]) -> Refusal | None:
        stages = self.worker.start(blocks, look_ahead)
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        with self.executor() as executor:
            refusal = BlockSchedule(numbers, look_ahead, stages, executor, watch).run()
        for done in self.worker.drain():
            watch(done)
        return refusal

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        run = self.worker.stages.run
        if self._executor is None:
            yield SerialExecutor(lambda stage, number: run(stage, number, time.process_time))
            return
        if self._executor == THREADS:
            executor: Any = ThreadExecutor(run)
        else:
            from pipeline.cluster.local import DaskExecutor

            executor = DaskExecutor(self._executor, run)
        try:
            yield executor
        finally:
            executor.close()

    def pause(self, why: str | None) -> None:
        self.worker.pause(why)

    def interrupt(self, why: str) -> None:
        self.pause(why)

    def restart(self) -> None:
        raise AssertionError("the one worker of this run is in the driver's own process, and is never lost")

    def close(self) -> None:
        if self._worker:
            self._worker.close()
