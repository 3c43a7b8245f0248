"""Opening a run: its workers, its directory, and its driver. Dask is imported where it is used, since that takes half a
second, and a run that has ended needs none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cluster.address import ANY_PORT
from pipeline.cluster.crew import WorkerSpec
from pipeline.data.source import Source
from pipeline.device.device import RAM, Device
from pipeline.device.gpu import GpusOfWorkers, choose, gets_gpu
from pipeline.driver.driver import Driver, MakeCrew
from pipeline.machine.affinity import Affinity, MachineLayout, lay_out
from pipeline.machine.aside import move_aside
from pipeline.machine.topology import disk_of, read_topology
from pipeline.preflight.setup import Setup
from pipeline.storage.files import Files
from pipeline.storage.folder import Folder
from pipeline.storage.reader import allow_many_files
from pipeline.workflow import Workflow

if TYPE_CHECKING:
    from pipeline.cluster.pool import WorkerPool


@contextmanager
def open_local(
    setup: Setup, source: Source, run_dir: Path, serial: bool = False, device: Device | None = None,
    dashboard: str = ANY_PORT,
) -> Iterator[Driver]:  # fmt: skip
    """Open a driver with one worker in this process. `run_dir` must be empty or hold a run. Stages run on Dask in this
    process unless `serial`. `device`: by default the one that the workflow names. `dashboard`: its
    address."""
    from pipeline.cluster.local import local_client

    device = device or choose(setup.workflow.device)
    allow_many_files()
    with nullcontext() if serial else local_client(dashboard) as client:
        yield Driver(setup, source, folder_of(setup, run_dir), local_crew(setup, source, device, client), device.model)


def open_pool(spec: WorkerSpec) -> closing[WorkerPool]:
    """Open workers in processes of a cluster. Raises NoWorkers if too few come up, ClusterInUse if another run has
    them, and PipelineError if Dask does not answer."""
    from pipeline.cluster.pool import WorkerPool

    return closing(WorkerPool(spec))


def open_crew(setup: Setup, source: Source, run_dir: Path, pool: WorkerPool) -> Driver:
    """Open a driver with the workers of a pool. Raises WorkerLost if they die at each attempt, and PipelineError if
    Dask does not answer."""
    models = pool.devices(setup.workflow.device)
    if len(models) > 1:
        print(f"workers train on {', '.join(models)}: the result depends on which worker gets which")
    return Driver(setup, source, folder_of(setup, run_dir), dask_crew(setup, source, pool), ", ".join(models))


def folder_of(setup: Setup, run_dir: Path) -> Folder:
    return Folder(run_dir, Files(cached=not setup.workflow.storage.direct))


def local_crew(setup: Setup, source: Source, device: Device, client: Any = None) -> MakeCrew:
    """Factory of a crew with one worker in this process, on `device`."""
    from pipeline.cluster.local_crew import LocalCrew

    return lambda folder, commits: LocalCrew(setup, source, folder, commits, device, client)


def dask_crew(setup: Setup, source: Source, pool: WorkerPool) -> MakeCrew:
    """Factory of a crew with the workers of a pool."""
    from pipeline.cluster.dask_crew import DaskCrew

    return lambda folder, commits: DaskCrew(pool, setup, folder, commits, source.identity)


def make_run_dir(run_dir: Path, fresh: bool) -> None:
    """Make the run directory, or check that an existing one is empty or holds a run. `fresh`: move an existing one
    aside and say where it is; nothing is ever deleted. Raises ValueError if it holds anything else."""
    if run_dir.exists() and any(run_dir.iterdir()):
        if fresh:
            print(move_aside(run_dir))
        elif not (run_dir / "commits").is_dir():
            raise ValueError(
                f"{run_dir} holds something else than a run; --fresh moves it aside, --run-dir names another folder"
            )
    for folder in (run_dir.absolute().parent, run_dir):
        Files().make_folder(folder)


def affinities_for(on_gpu: bool, world: int, run_dir: Path) -> MachineLayout:
    """Affinities of the workers on this machine."""
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    return lay_out(read_topology(on_gpu), world, disk_of(there))


def recruit(
    workflow: Workflow, world: int, scheduler: str | None, dashboard: str = ANY_PORT, run_dir: Path = Path()
) -> tuple[Any, WorkerSpec]:
    """Return a description of the device of workers in processes of their own, and their `WorkerSpec`. For workers of
    another scheduler, device "auto" means a GPU if this machine has one. Raises ValueError if this machine has too few
    GPUs, or if storage.device is a share of memory that this machine cannot see."""
    elsewhere = scheduler and workflow.device == "cuda"
    topology = read_topology(on_gpu := bool(elsewhere or gets_gpu(workflow.device)))
    if on_gpu and not scheduler and world > len(topology.gpus):
        raise ValueError(
            f"--workers {world}: each needs a GPU of its own, and {len(topology.gpus)} can be used here (seen by "
            "NVML, of the extra gpu, and allowed by CUDA_VISIBLE_DEVICES); take fewer workers, or set device to cpu"
        )
    affinities = () if scheduler else lay_out(topology, world).affinities
    if scheduler and not on_gpu and workflow.storage.device is not None:
        check_is_size(workflow, "workers' machines")
    device = GpusOfWorkers(min_free(workflow, affinities)) if on_gpu else RAM
    return device, WorkerSpec(
        world, scheduler, affinities, own_modules(workflow), dashboard, f"{workflow.name} in {run_dir.absolute()}"
    )


def min_free(workflow: Workflow, affinities: Sequence[Affinity]) -> int:
    """Free bytes of the GPU with the least free memory; unlimited if unknown. Raises ValueError if it is unknown and
    storage.device is a share."""
    free = [affinity.gpu.free_bytes for affinity in affinities if affinity.gpu]
    known = [num_bytes for num_bytes in free if num_bytes is not None]
    if len(known) < max(1, len(free)):
        check_is_size(workflow, "workers' GPUs")
    # If storage.device is a size that a worker's GPU cannot hold, the worker reports it when it allocates.
    return min(known, default=sys.maxsize)


def check_is_size(workflow: Workflow, whose: str) -> None:
    """Raises ValueError if storage.device is a share or left out, for memory that this machine cannot see."""
    device = workflow.storage.device
    if not isinstance(device, int):
        raise ValueError(
            f"storage.device is {'left out' if device is None else device}, and how much memory of the {whose} is free "
            "is not known here; give it as a size"
        )


def shared_by(workflow: Workflow, world: int, scheduler: str | None) -> Workflow:
    """Return the workflow as each worker trains it: workers of one machine share its threads. Raises ValueError if
    there are more workers than shards."""
    if world < 1:
        raise ValueError(f"--workers {world}: give at least 1")
    if world > (maximum := workflow.workers.num_shards(world)):
        raise ValueError(
            f"--workers {world}: the table has {maximum} shards, and each worker needs one; raise workers.shards"
        )
    if scheduler or world == 1:
        return workflow
    schedule = workflow.schedule
    threads = max(1, schedule.threads // world)
    return workflow.model_copy(update={"schedule": schedule.model_copy(update={"threads": threads})})


def own_modules(workflow: Workflow) -> dict[str, tuple[str, str]]:
    """Path and source text of the workflow's file, by module name, if it defines the model class. Workers cannot import
    that file."""
    name = workflow.model.kind.__module__
    file = getattr(sys.modules[name], "__file__", None)
    return {name: (file, Path(file).read_text())} if name.startswith("workflow_") and file else {}
