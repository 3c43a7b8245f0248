"""The workers of a run as seen by the driver: one in the driver's process (`local_crew`), or many (`dask_crew`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pipeline.cluster.address import ANY_PORT
from pipeline.commits.manifest import Commits, Manifest
from pipeline.errors import PipelineError
from pipeline.preflight.sizes import Sizes
from pipeline.records import Array, Block, Refusal, StageResult
from pipeline.training.dense_state import merge_dense
from pipeline.worker.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The workers to train with: how many, and whether they are started here or belong to an external scheduler."""

    world: int
    scheduler: str | None = None
    gpus: tuple[str, ...] = ()
    """UUID of the GPU of each worker started here; empty if they train on CPUs."""
    model: bytes = b""
    """The workflow's model class, from `to_bytes`; empty: workers import it by name."""
    dashboard: str = ANY_PORT
    """Address of the dashboard of workers started here; see `free_address`."""
    run: str = ""
    """Name and folder of the run, shown to other runs that request workers of the same scheduler."""


def replicas_for(world: int, commits: Commits, kept: Sequence[Manifest]) -> list[Mapping[str, Array] | None]:
    """Load the initial dense part of each of `world` workers: its own if the last commit has one per worker, else the
    mean of those in the commit; None without a commit."""
    if not kept:
        return [None] * world
    saved = [commits.load_dense(kept[-1], replica) for replica in range(len(kept[-1].dense))]
    return list(saved) if len(saved) == world else [merge_dense(saved)] * world


class WorkerLost(PipelineError):
    """A worker has died or hangs. The other workers have not been notified; call `restart`, then `open`."""


class Crew(Protocol):
    world: int
    dashboard: str | None
    """Address of the Dask dashboard; None without Dask."""
    overlaps: bool
    """True if stages run concurrently, False if one thread runs them in turn."""
    sizes: Sizes
    """Sizes with which `open` opens the workers."""

    def open(self, kept: Sequence[Manifest]) -> None:
        """Open the last of these commits on all workers, or an empty table if there is none. Closes any open commit
        first."""

    def each(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> list[T]:
        """Call a method of `Worker` on each worker. Returns the results in rank order."""

    def first(self, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Call a method of `Worker` on the first worker."""

    def replicas(self) -> Sequence[Mapping[str, Array]]:
        """Results of `Worker.dense` of each worker, or of only the first if all are equal."""

    def run(self, blocks: Sequence[Block], look_ahead: int, watch: Callable[[StageResult], None]) -> Refusal | None:
        """Run the pipeline over these blocks, up to the first refused one. Nothing is in flight afterwards."""

    def pause(self, why: str | None) -> None:
        """Stop planning blocks. `why`: the reason; None: resume planning. May be called from any thread."""

    def interrupt(self, why: str) -> None:
        """Same as `pause`, but safe in a signal handler. Does nothing if a pause would take long: the driver then
        pauses at the next block."""

    def restart(self) -> None:
        """Replace all processes, including lost and stuck ones. `open` must follow. `dashboard` keeps its address if
        its port is free."""

    def close(self) -> None:
        """Release the resources of the workers. May be called twice."""
