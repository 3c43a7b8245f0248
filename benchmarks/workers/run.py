"""One measured run of `workers`, in a separate process: a number of workers on a number of cores.

Its last line is JSON. The steady state begins after the first quarter of the training and lasts to its end: by then
workers have started, kernels are loaded, and every frequent key has its row.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cases import make_workflow
from benchmarks.once import Quiet
from pipeline.cluster.crew import WorkerSpec
from pipeline.cluster.local import local_client
from pipeline.cluster.pool import WorkerPool
from pipeline.device.gpu import choose
from pipeline.driver.driver import Driver
from pipeline.driver.open import dask_crew, folder_of, local_crew, shared_by
from pipeline.machine.process import keep_freed_memory
from pipeline.monitor.history import StageTimes
from pipeline.monitor.observer import Observer
from pipeline.preflight.setup import set_up
from pipeline.records import StageCall, StageResult
from pipeline.workflow import Commit, Workflow

HIDDEN = (64,)


class Sampled(Quiet):
    """Progress that records the CPU time of this process and of its workers, block by block."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu_at: dict[int, list[float]] = {}

    def update(self, examples_done: int, loss: float) -> None:
        super().update(examples_done, loss)
        me = psutil.Process()
        workers = [one for one in me.children() if "spawn_main" in " ".join(one.cmdline())]
        self.cpu_at[examples_done] = [sum(one.cpu_times()[:2]) for one in (me, *workers)]


class Calls(Observer):
    """All calls of a run."""

    def __init__(self) -> None:
        self.all: list[StageCall] = []

    def on_stage(self, done: StageResult) -> None:
        if done.call:
            self.all.append(done.call)


def workload(data: Path, num_keys: int, num_batches: int, batch: int, block_batches: int, threads: int) -> Workflow:
    """Workflow of Criteo's shape with a small dense part. All rows fit into one worker's device slab. `threads`: total
    over all workers."""
    sizes = {"slab_rows": num_keys, "host_rows": 1000, "ring_rows": 600_000}
    examples = num_batches * batch
    workflow = make_workflow(
        "workers", data / f"workers-{examples}", num_keys, examples, HIDDEN, batch_size=batch,
        block_batches=block_batches, **sizes,
    )  # fmt: skip
    storage = workflow.storage.model_copy(update={"read": 512 << 20, "map": 256 << 20})
    schedule = workflow.schedule.model_copy(update={"epochs": 1, "threads": threads})
    commit = Commit(every_minutes=None)
    return workflow.model_copy(update={"schedule": schedule, "storage": storage, "commit": commit})


def measure(workflow: Workflow, world: int, run_dir: Path) -> dict[str, Any]:
    progress, device, spec = Sampled(), choose(workflow.device), WorkerSpec(world)
    workflow = shared_by(workflow, world, None)
    setup, source = set_up(workflow, device, print, world)
    keep_freed_memory()
    with ExitStack() as stack:
        if world == 1:
            client = stack.enter_context(local_client())
            crew = local_crew(setup, source, device, client)
        else:
            pool = stack.enter_context(closing(WorkerPool(spec)))
            crew = dask_crew(setup, source, pool)
        driver = Driver(setup, source, folder_of(setup, run_dir), crew, progress=progress).open()
        calls = Calls()
        driver.runner.observers.append(calls)
        result = driver.run()
        assert result is not None
    return steady(progress, calls.all)


def steady(progress: Sampled, calls: list[StageCall]) -> dict[str, Any]:
    """Figures of the steady state."""
    at = sorted(progress.cpu_at)
    first, last = at[len(at) // 4], at[-1]
    begin, end = progress.seconds_at[first], progress.seconds_at[last]
    times = StageTimes(call for call in calls if call.start >= begin and call.stop <= end)
    cpu = [b - a for a, b in zip(progress.cpu_at[first], progress.cpu_at[last], strict=True)]
    return {
        "examples_per_s": (last - first) / (end - begin),
        "examples": last - first,
        # A single worker is a thread of the driver's process.
        "driver_cpu": cpu[0] if cpu[1:] else 0.0,
        "worker_cpu": statistics.mean(cpu[1:]) if cpu[1:] else cpu[0],
        "stages": times.seconds,
    }


def main() -> None:
    data, (world, first, cores, num_keys, num_batches, batch, block_batches) = Path(sys.argv[1]), map(int, sys.argv[2:])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[first : first + cores])
    workflow = workload(data, num_keys, num_batches, batch, block_batches, max(world, cores))
    with tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-") as name:
        measured = measure(workflow, world, Path(name) / "run")
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
