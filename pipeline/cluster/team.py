"""The workers of a run as the driver sees them: one in its own process, or many (`pipeline.cluster.dask_crew`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.cluster.local import DaskExecutor, dashboard_link
from pipeline.commits.manifest import Commits, Manifest
from pipeline.errors import PipelineError
from pipeline.machine.affinity import Seat
from pipeline.records import Array, Block, Done, Refusal
from pipeline.schedule import Executor, Schedule, SerialExecutor
from pipeline.training.dense_state import merge_dense
from pipeline.worker.resources import Resources
from pipeline.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Team:
    """Who trains: so many workers, of a cluster that is started here or of a scheduler's."""

    world: int
    scheduler: str | None = None
    seats: tuple[Seat, ...] = ()
    """What each has of this machine; empty where the scheduler's machines are not known."""
    modules: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name and source text of the workflow's own files, by module name: workers cannot import them."""


def replicas_for(world: int, commits: Commits, kept: Sequence[Manifest]) -> list[Mapping[str, Array] | None]:
    """The dense part that each of `world` workers begins with: what it had itself, or, where there were other workers,
    the mean of what they had."""
    if not kept:
        return [None] * world
    saved = [commits.load_dense(kept[-1], replica) for replica in range(len(kept[-1].dense))]
    return list(saved) if len(saved) == world else [merge_dense(saved)] * world


class WorkerLost(PipelineError):
    """A worker is gone, or hangs. The others were told nothing; `open` begins anew with new processes."""


class Crew(Protocol):
    world: int
    dashboard: str | None
    """Where it listens."""

    def open(self, kept: Sequence[Manifest]) -> None:
        """Have the last of these commits open, or nothing trained yet; whatever was open before is closed."""

    def each(self, method: str, *args: Any) -> list[Any]:
        """What a method of `Worker` gives on each, in the order of ranks."""

    def first(self, method: str, *args: Any) -> Any:
        """The same of the first worker alone."""

    def replicas(self) -> Sequence[Mapping[str, Array]]:
        """`Worker.dense` of each, or of the first alone where they are the same."""

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[Done], None]) -> Refusal | None:
        """Run the pipeline for these blocks, or up to the first that is refused; nothing is in flight afterwards."""

    def pause(self, why: str | None) -> None:
        """Plan no further block, or go on (None). From any thread."""

    def restart(self) -> None:
        """New processes in place of lost and stuck ones; `open` comes next."""

    def close(self) -> None:
        """Give back what the workers hold. May be called twice."""


class Alone:
    """The one worker lives in the driver's process; stages run in plain order, or on Dask if there is a client."""

    world = 1

    def __init__(self, open_worker: Callable[[Sequence[Manifest]], Worker], client: Any = None) -> None:
        self._open_worker, self._client = open_worker, client
        self.worker: Worker | None = None
        self.dashboard = dashboard_link(client) if client else None

    @property
    def resources(self) -> Resources:
        assert self.worker
        return self.worker.resources

    def open(self, kept: Sequence[Manifest]) -> None:
        if self.worker:
            device = self.worker.resources.device
            self.close()
            device.give_back()
        self.worker = self._open_worker(kept)

    def each(self, method: str, *args: Any) -> list[Any]:
        return [self.first(method, *args)]

    def first(self, method: str, *args: Any) -> Any:
        return getattr(self.worker, method)(*args)

    def replicas(self) -> Sequence[Mapping[str, Array]]:
        return self.each("dense")

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[Done], None]) -> Refusal | None:
        stages = self.first("start", blocks, look_ahead)
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        with self.executor() as executor:
            refusal = Schedule(numbers, look_ahead, stages, executor, watch).run()
        for done in self.first("drain"):
            watch(done)
        return refusal

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        resources = self.resources
        if self._client is None:
            yield SerialExecutor(lambda stage, number: resources.run(stage, number, time.process_time))
            return
        executor = DaskExecutor(self._client, resources.run)
        try:
            yield executor
        finally:
            executor.close()

    def pause(self, why: str | None) -> None:
        self.resources.pause = why

    def restart(self) -> None:
        raise PipelineError("the one worker of this run is in the driver's own process")

    def close(self) -> None:
        if self.worker:
            self.worker.close()
