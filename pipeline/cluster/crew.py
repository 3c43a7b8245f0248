"""The workers of a run as the driver sees them: one in its own process (`local_crew`), or many (`dask_crew`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pipeline.cluster.address import ANY_PORT
from pipeline.commits.manifest import Commits, Manifest
from pipeline.errors import PipelineError
from pipeline.machine.affinity import Affinity
from pipeline.own_code.modules import ClassText
from pipeline.records import Array, Block, Refusal, StageResult
from pipeline.training.dense_state import merge_dense
from pipeline.worker.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The workers that are to train: their number, and whether they are started here or belong to a scheduler."""

    world: int
    scheduler: str | None = None
    affinities: tuple[Affinity, ...] = ()
    """GPU and CPUs of each worker; empty for the workers of a scheduler, whose machines are unknown."""
    model: ClassText | None = None
    """The workflow's model class as workers make it; None: they import it by its name."""
    dashboard: str = ANY_PORT
    """Address of the dashboard of workers that are started here; see `free_address`."""
    run: str = ""
    """Name and folder of the run, shown to another one that asks for the same scheduler's workers."""


def replicas_for(world: int, commits: Commits, kept: Sequence[Manifest]) -> list[Mapping[str, Array] | None]:
    """Load the dense part that each of `world` workers begins with: its own if the last commit has one for each, else
    the mean of those in the commit; None without a commit."""
    if not kept:
        return [None] * world
    saved = [commits.load_dense(kept[-1], replica) for replica in range(len(kept[-1].dense))]
    return list(saved) if len(saved) == world else [merge_dense(saved)] * world


class WorkerLost(PipelineError):
    """A worker is gone, or hangs. The other workers have not been notified; call `restart`, then `open`."""


class Crew(Protocol):
    world: int
    dashboard: str | None
    """Address of the Dask dashboard; None without Dask."""
    page: str | None
    """Address of the run's page; None if no server of this process shows it."""
    overlaps: bool
    """True if stages run at the same time, False if one thread runs them in turn."""

    def open(self, kept: Sequence[Manifest]) -> None:
        """Open the last of these commits on all workers, or an empty table if there is none. Closes what was open."""

    def each(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> list[T]:
        """Call a method of `Worker` on each worker; returns the results in the order of ranks."""

    def first(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Call a method of `Worker` on the first worker."""

    def replicas(self) -> Sequence[Mapping[str, Array]]:
        """Result of `Worker.dense` of each worker, or of the first alone if all are the same."""

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[StageResult], None]) -> Refusal | None:
        """Run the pipeline for these blocks, or up to the first refused one; nothing is in flight afterwards."""

    def pause(self, why: str | None) -> None:
        """Stop planning blocks, for the reason `why`; None: continue. May be called from any thread."""

    def interrupt(self, why: str) -> None:
        """Same as `pause`, but callable from a signal handler. Does nothing if that would take long: the driver then
        pauses at the next block."""

    def restart(self) -> None:
        """Replace all processes, lost and stuck ones included, by new ones. `open` must follow. `dashboard` and `page`
        stay as they are if their port is free."""

    def close(self) -> None:
        """Release what the workers hold. May be called twice."""
