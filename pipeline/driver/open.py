"""Opening a run: its workers, its directory, and its driver. Dask is imported where it is used, since the import takes
half a second and a finished run does not need it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cluster.address import ANY_PORT
from pipeline.cluster.crew import WorkerSpec
from pipeline.cluster.run_plugin import to_bytes
from pipeline.data.source import Source
from pipeline.device.device import RAM, Device
from pipeline.device.gpu import GpuInfo, GpusOfWorkers, choose, gets_gpu, read_gpus
from pipeline.driver.driver import Driver, MakeCrew
from pipeline.machine.aside import move_aside
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
    """Open a driver with one worker in this process; the worker and `source` are closed at the end. `run_dir` must be
    empty or contain a run. Stages run on Dask in this process unless `serial`. `device`: by default, that of the
    workflow. `dashboard`: address of the dashboard."""
    from pipeline.cluster.local import local_client

    device = device or choose(setup.workflow.device)
    allow_many_files()
    with closing(source), nullcontext() if serial else local_client(dashboard) as client:
        crew = local_crew(setup, source, device, client)
        with closing(Driver(setup, source, folder_of(setup, run_dir), crew, device.model).open()) as driver:
            yield driver


def open_pool(spec: WorkerSpec) -> closing[WorkerPool]:
    """Open workers in the processes of a cluster. Raises NoWorkers if too few start, ClusterInUse if another run is
    using them, and PipelineError if Dask does not respond."""
    from pipeline.cluster.pool import WorkerPool

    return closing(WorkerPool(spec))


@contextmanager
def open_crew(setup: Setup, source: Source, run_dir: Path, pool: WorkerPool) -> Iterator[Driver]:
    """Open a driver with the workers of a pool. Raises WorkerLost if workers die at every attempt, and PipelineError if
    Dask does not respond."""
    with closing(source):
        models = pool.devices(setup.workflow.device)
        if len(models) > 1:
            print(f"workers train on {', '.join(models)}: the result depends on which worker gets which")
        crew = dask_crew(setup, source, pool)
        with closing(Driver(setup, source, folder_of(setup, run_dir), crew, ", ".join(models)).open()) as driver:
            yield driver


def folder_of(setup: Setup, run_dir: Path) -> Folder:
    return Folder(run_dir, Files(cached=not setup.workflow.storage.direct))


def local_crew(setup: Setup, source: Source, device: Device, executor: Any = None) -> MakeCrew:
    """Factory of a crew with one worker in this process, on `device`. `executor`: see `LocalCrew`."""
    from pipeline.cluster.local_crew import LocalCrew

    return lambda folder, commits: LocalCrew(setup, source, folder, commits, device, executor)


def dask_crew(setup: Setup, source: Source, pool: WorkerPool) -> MakeCrew:
    """Factory of a crew with the workers of a pool."""
    from pipeline.cluster.dask_crew import DaskCrew

    return lambda folder, commits: DaskCrew(pool, setup, folder, commits, source.as_begun)


def make_run_dir(run_dir: Path, fresh: bool) -> None:
    """Create the run directory, or check that an existing one is empty or contains a run. `fresh`: move an existing one
    aside and print its new place; nothing is ever deleted. Raises ValueError if it contains anything else."""
    if run_dir.exists() and any(run_dir.iterdir()):
        if fresh:
            print(move_aside(run_dir))
        elif not (run_dir / "commits").is_dir():
            raise ValueError(
                f"{run_dir} is not empty and holds no run; --fresh moves it aside, --out names another folder"
            )
    for folder in (run_dir.absolute().parent, run_dir):
        Files().make_folder(folder)


def recruit(
    workflow: Workflow, world: int, scheduler: str | None, dashboard: str = ANY_PORT, run_dir: Path = Path()
) -> tuple[Any, WorkerSpec]:
    """Return a description of the device of workers in separate processes, and their `WorkerSpec`. For workers of an
    external scheduler, device "auto" means a GPU if this machine has one. Raises ValueError if this machine has too few
    GPUs, or if storage.device is a share of memory that is not visible from this machine."""
    if not scheduler:
        check_main()
    elsewhere = scheduler and workflow.device == "cuda"
    on_gpu = bool(elsewhere or gets_gpu(workflow.device))
    gpus = read_gpus() if on_gpu and not scheduler else []
    if on_gpu and not scheduler and world > len(gpus):
        raise ValueError(
            f"--workers {world}: each needs its own GPU, and {len(gpus)} can be used here (seen by "
            "NVML, of the extra gpu, and allowed by CUDA_VISIBLE_DEVICES); use fewer workers, or set device to cpu"
        )
    gpus = gpus[:world]
    if scheduler and not on_gpu and workflow.storage.device is not None:
        check_is_size(workflow, "workers' machines")
    device = GpusOfWorkers(min_free(workflow, gpus)) if on_gpu else RAM
    run = f"{workflow.name} in {run_dir.absolute()}"
    uuids = tuple(gpu.uuid for gpu in gpus)
    return device, WorkerSpec(world, scheduler, uuids, to_bytes(workflow.model.kind), dashboard, run)


def check_main() -> None:
    """Raises ValueError if workers would also train when they import the script of this process, or if the script is
    not a file and so cannot be imported."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file == "<stdin>":
        raise ValueError(
            "the script is read from standard input, and workers are processes that import it from its file; write it "
            "to a file, or train with one worker"
        )
    if not file or getattr(main, "__spec__", None) or not Path(file).is_file():
        return
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (SyntaxError, ValueError):
        return
    guards = [node for node in body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    if not guards:
        raise ValueError(
            f'{file} has no `if __name__ == "__main__":`, and workers are processes that import it, so each would '
            "train again; put the training under such a line"
        )


def min_free(workflow: Workflow, gpus: Sequence[GpuInfo]) -> int:
    """Free bytes of the GPU with the least free memory; unlimited if unknown. Raises ValueError if unknown and
    storage.device is a share."""
    known = [gpu.free_bytes for gpu in gpus if gpu.free_bytes is not None]
    if len(known) < max(1, len(gpus)):
        check_is_size(workflow, "workers' GPUs")
    # If storage.device is a size that does not fit on a worker's GPU, the worker reports it on allocation.
    return min(known, default=sys.maxsize)


def check_is_size(workflow: Workflow, whose: str) -> None:
    """Raises ValueError if storage.device is a share or omitted, since the memory is not visible from this machine."""
    device = workflow.storage.device
    if not isinstance(device, int):
        raise ValueError(
            f"storage.device is {'left out' if device is None else device}, and how much memory of the {whose} is free "
            "is not known here; give it as a size"
        )


def shared_by(workflow: Workflow, world: int, scheduler: str | None) -> Workflow:
    """Return the workflow as each worker trains it: workers on the same machine share its threads. Raises ValueError if
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
