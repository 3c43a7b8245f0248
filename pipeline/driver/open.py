"""Opening a run: who trains it, where its directory is, and a driver for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pipeline.cluster.crew import WorkerSpec
from pipeline.cluster.dask_crew import DaskCrew
from pipeline.cluster.local import local_client
from pipeline.cluster.local_crew import LocalCrew
from pipeline.cluster.pool import WorkerPool
from pipeline.data.source import Source
from pipeline.device.device import RAM, Device
from pipeline.device.gpu import GpusOfWorkers, choose, gets_gpu
from pipeline.driver.driver import Driver, MakeCrew
from pipeline.machine.affinity import Affinity, MachineLayout, lay_out
from pipeline.machine.topology import disk_of, read_topology
from pipeline.preflight.setup import Setup
from pipeline.storage.files import Files
from pipeline.storage.folder import Folder
from pipeline.storage.reader import allow_many_files
from pipeline.workflow import MemoryShare, Workflow


@contextmanager
def open_run(
    setup: Setup, source: Source, run_dir: Path, serial: bool = False, device: Device | None = None
) -> Iterator[Driver]:
    """A driver for a directory that is empty or holds a run, with Dask in this process unless `serial`. `device`: by
    default the one that the workflow asks for."""
    device = device or choose(setup.workflow.device)
    allow_many_files()
    with nullcontext() if serial else local_client() as client:
        yield Driver(setup, source, folder_of(setup, run_dir), local_crew(setup, source, device, client), device.model)


@contextmanager
def open_crew(setup: Setup, source: Source, run_dir: Path, spec: WorkerSpec) -> Iterator[Driver]:
    """A driver whose workers are processes of a cluster. NoWorkers: too few came. WorkerLost: they die, each time.
    PipelineError: Dask does not answer."""
    with closing(WorkerPool(spec)) as pool:
        models = pool.devices(setup.workflow.device)
        if len(models) > 1:
            print(f"workers train on {', '.join(models)}: the result depends on which worker gets which")
        yield Driver(setup, source, folder_of(setup, run_dir), dask_crew(setup, source, pool), ", ".join(models))


def folder_of(setup: Setup, run_dir: Path) -> Folder:
    return Folder(run_dir, Files(cached=not setup.workflow.storage.direct))


def local_crew(setup: Setup, source: Source, device: Device, client: Any = None) -> MakeCrew:
    """One worker in this process, on this device."""
    return lambda folder, commits: LocalCrew(setup, source, folder, commits, device, client)


def dask_crew(setup: Setup, source: Source, pool: WorkerPool) -> MakeCrew:
    """The workers of a pool."""
    return lambda folder, commits: DaskCrew(pool, setup, folder, commits, source.identity)


def make_run_dir(run_dir: Path, fresh: bool) -> None:
    """A run directory that is empty, or holds a run of ours. What was there is moved aside if so asked, and never
    deleted."""
    if run_dir.exists() and any(run_dir.iterdir()):
        if fresh:
            beside = (run_dir.with_name(f"{run_dir.name}.{n}") for n in range(1, 1 << 20))
            run_dir.rename(next(path for path in beside if not path.exists()))
        elif not (run_dir / "commits").is_dir():
            raise ValueError(
                f"{run_dir} holds something else than a run; --fresh moves it aside, --run-dir names another place"
            )
    for folder in (run_dir.absolute().parent, run_dir):
        Files().make_folder(folder)


def affinities_for(on_gpu: bool, world: int, run_dir: Path) -> MachineLayout:
    """Return what each worker gets of this machine."""
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    return lay_out(read_topology(on_gpu), world, disk_of(there))


def recruit(workflow: Workflow, world: int, scheduler: str | None) -> tuple[Any, WorkerSpec]:
    """Return what workers that are processes of their own train on, as far as this one has to know it, and who they
    are. Of a scheduler's workers "auto" asks for what this machine has. ValueError: this machine has too few GPUs,
    or storage.device is a share of memory that is not known here."""
    elsewhere = scheduler and workflow.device == "cuda"
    topology = read_topology(on_gpu := bool(elsewhere or gets_gpu(workflow.device)))
    if on_gpu and not scheduler and world > len(topology.gpus):
        raise ValueError(
            f"--workers {world}: each has a GPU of its own, and there are {len(topology.gpus)} here that NVML, of the "
            "extra gpu, tells of and CUDA_VISIBLE_DEVICES leaves; take fewer workers, or set device to cpu"
        )
    affinities = () if scheduler else lay_out(topology, world).affinities
    if scheduler and not on_gpu:
        check_is_size(workflow, "workers' machines")
    device = GpusOfWorkers(min_free(workflow, affinities)) if on_gpu else RAM
    return device, WorkerSpec(world, scheduler, affinities, own_modules(workflow))


def min_free(workflow: Workflow, affinities: Sequence[Affinity]) -> int:
    """Bytes of the GPU that has the least. ValueError: nobody knows here, and storage.device is a share."""
    free = [affinity.gpu.free_bytes for affinity in affinities if affinity.gpu]
    known = [num_bytes for num_bytes in free if num_bytes is not None]
    if len(known) < max(1, len(free)):
        check_is_size(workflow, "workers' GPUs")
    # A worker that has less than a size says so when it takes it.
    return min(known, default=sys.maxsize)


def check_is_size(workflow: Workflow, whose: str) -> None:
    """ValueError: storage.device is a share of memory that this machine does not see."""
    if isinstance(workflow.storage.device, MemoryShare):
        raise ValueError(
            f"storage.device is {workflow.storage.device}, and how much memory of the {whose} is "
            "free is not known here; give it as a size"
        )


def shared_by(workflow: Workflow, world: int, scheduler: str | None) -> Workflow:
    """The workflow as each worker trains it: those of a machine share its threads. ValueError: they are too many."""
    if world < 1:
        raise ValueError(f"--workers {world}: give at least 1")
    if world > (maximum := workflow.workers.num_shards(world)):
        raise ValueError(
            f"--workers {world}: the table has {maximum} shards, one a worker at least; raise workers.shards"
        )
    if scheduler or world == 1:
        return workflow
    schedule = workflow.schedule
    threads = max(1, schedule.threads // world)
    return workflow.model_copy(update={"schedule": schedule.model_copy(update={"threads": threads})})


def own_modules(workflow: Workflow) -> dict[str, tuple[str, str]]:
    """Name and source text of the workflow's file, if its model is from there: workers cannot import it."""
    name = workflow.model.kind.__module__
    file = getattr(sys.modules[name], "__file__", None)
    return {name: (file, Path(file).read_text())} if name.startswith("workflow_") and file else {}
