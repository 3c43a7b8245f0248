"""The workers of a run as the driver sees them: one in its own process (`alone`), or many (`dask_crew`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pipeline.commits.manifest import Commits, Manifest
from pipeline.errors import PipelineError
from pipeline.machine.affinity import Affinity
from pipeline.records import Array, Block, Refusal, StageResult
from pipeline.training.dense_state import merge_dense
from pipeline.worker.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Who trains: so many workers, of a cluster that is started here or of a scheduler's."""

    world: int
    scheduler: str | None = None
    affinities: tuple[Affinity, ...] = ()
    """The part of this machine that each has; empty where the scheduler's machines are not known."""
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

    def each(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> list[T]:
        """Return what a method of `Worker` returns on each, in the order of ranks."""

    def first(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> T:
        """The same of the first worker alone."""

    def replicas(self) -> Sequence[Mapping[str, Array]]:
        """`Worker.dense` of each, or of the first alone where they are the same."""

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[StageResult], None]) -> Refusal | None:
        """Run the pipeline for these blocks, or up to the first that is refused; nothing is in flight afterwards."""

    def pause(self, why: str | None) -> None:
        """Plan no further block, or go on (None). From any thread."""

    def interrupt(self, why: str) -> None:
        """As `pause`, from a signal handler; nothing where that takes long: the driver pauses at the next block."""

    def restart(self) -> None:
        """New processes in place of lost and stuck ones; `open` comes next."""

    def close(self) -> None:
        """Give back what the workers hold. May be called twice."""
