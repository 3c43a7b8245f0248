"""Dask workers in separate processes: a cluster started for the run, or an existing one."""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from distributed import Client, LocalCluster
from distributed.security import Security

from pipeline.cluster.address import OFF, free_address
from pipeline.cluster.crew import WorkerSpec
from pipeline.cluster.dashboard import PlainNanny, dashboard_options, mount
from pipeline.cluster.local import settings_of_start
from pipeline.cluster.run_plugin import RunPlugin, silence_lost_connections
from pipeline.cluster.waits import CLOSE_SECONDS, NOTE_SECONDS, close_in_time, in_time
from pipeline.device.gpu import identify
from pipeline.errors import PipelineError
from pipeline.stages import STAGES

THREADS = len(STAGES) + 4
"""Threads of a worker: one per stage, one for calls from the driver, and three spare."""
START_SECONDS = 120.0
MARK = "PIPELINE_POOL"
"""Environment variable that marks the processes started for a pool."""
STARTS = 3
"""Number of attempts to start a cluster: Dask gives up if one of its processes dies during startup."""


class NoWorkers(PipelineError):
    """Fewer workers started than the run needs."""


class ClusterInUse(ValueError):
    """Another run is using the workers of a scheduler; the message names that run."""


def claim_workers(client: Client, scheduler: str, run: str) -> None:
    """Claim the workers of a scheduler for a run while this client is connected: a killed driver loses them with its
    connection. `run`: name and folder of the run. Raises ClusterInUse if another run has them."""

    # A nested function is pickled by value, so the process of the scheduler does not need this package. The scheduler's
    # event loop runs the function atomically, so only one of two runs that start at the same time succeeds.
    def claim(client: str, run: str, dask_scheduler: Any) -> str | None:
        owner, owned_by = dask_scheduler.task_metadata.get("pipeline", (client, run))
        if owner != client and owner in dask_scheduler.clients:
            return str(owned_by)
        dask_scheduler.task_metadata["pipeline"] = client, run
        return None

    whose = f"{run}, process {os.getpid()} on {platform.node()}"
    what = "asking the scheduler whether another run has its workers"
    if other := in_time(what, lambda: client.run_on_scheduler(claim, client.id, whose)):
        raise ClusterInUse(
            f"--scheduler {scheduler}: its workers train {other}; wait for that run to end, or give this one another "
            "cluster"
        )


class WorkerPool:
    """The Dask workers of a run, in an order that is fixed until `restart`."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Start a cluster on this machine, or use the user's scheduler as configured. All sockets of a started cluster
        except that of the dashboard are on loopback and require the cluster's key. Raises NoWorkers if too few workers
        start, and ClusterInUse if another run is using them."""
        self.spec, self.world = spec, spec.world
        if spec.scheduler is None:
            # Dask's silence_logs is undone when a cluster is closed, possibly after the next one was opened. Dask would
            # log killed workers with tracebacks; the driver reports them in one line.
            for handler in logging.getLogger("distributed").handlers:
                handler.addFilter(_is_critical)
        silence_lost_connections()
        self._mark = uuid.uuid4().hex
        """Value of the environment variable `MARK` in each process started by this pool."""
        self._open()

    def _open(self) -> None:
        """Start the cluster or connect to it. Raises NoWorkers if every attempt fails, and ClusterInUse if another run
        is using the workers."""
        failed: Exception | None = None
        for _ in range(STARTS if self.spec.scheduler is None else 1):
            self._stack = ExitStack()
            self.cluster: Any = None
            self.folder = ""
            """Private folder of this user through which the workers find each other; empty for workers of an external
            scheduler."""
            try:
                return self._connect()
            except (RuntimeError, OSError) as error:
                self.close()
                failed = error
            except BaseException:
                self.close()
                raise
        raise NoWorkers(f"{self.world} workers did not start: {failed}") from failed

    def _connect(self) -> None:
        if self.spec.scheduler is None:
            # Dask's own time limit, death_timeout, applies to each process separately.
            self.folder = self._stack.enter_context(TemporaryDirectory(prefix="pipeline-"))
            self.cluster = in_time("starting processes", lambda: _start(self.spec, self._mark), 2 * START_SECONDS)
            mount(self.cluster.scheduler, self.spec.dashboard)
            self._stack.enter_context(self.cluster)
        self.client = Client(self.cluster or self.spec.scheduler)
        self._stack.callback(self.client.close)
        if self.spec.scheduler:
            claim_workers(self.client, self.spec.scheduler, self.spec.run)
        plugin = RunPlugin(ours=self.cluster is not None)
        in_time("opening workers", lambda: self.client.register_plugin(plugin), START_SECONDS)
        self.addresses = self._wait(())

    def _wait(self, gone: Sequence[str]) -> list[str]:
        """Wait until there are enough workers, not counting the addresses `gone`. Returns their addresses, ordered by
        host, then by name."""
        begun, has_said = time.monotonic(), False
        while (waited := time.monotonic() - begun) < START_SECONDS:
            workers = {a: name for a, name in self._names().items() if a not in gone}
            if len(workers) >= self.world:
                return sorted(workers, key=lambda a: (_host(a), f"{workers[a]:>9}", a))[: self.world]
            time.sleep(0.05)
            if waited > NOTE_SECONDS and not has_said:
                has_said = True
                print(
                    f"waiting for workers of {self.spec.scheduler}: {self.world} are needed, and there are "
                    f"{len(workers)}; the run ends after {START_SECONDS:.0f} s", flush=True,
                )  # fmt: skip
        raise NoWorkers(
            f"{len(workers)} workers joined within {START_SECONDS:.0f} s, but {self.world} are needed; start more, or "
            "lower --workers"
        )

    def devices(self, name: str) -> list[str]:
        """Return the distinct device models on which the workers would train with device `name`. Raises NoAnswer if a
        worker does not respond."""
        found: dict[str, tuple[str, str]] = in_time(
            "asking workers for their devices",
            lambda: self.client.run(identify, name, workers=list(self.addresses)),
            START_SECONDS,
        )
        return sorted({model for model, _ in found.values()})

    def _names(self) -> dict[str, Any]:
        """Names of all workers of the scheduler, by address."""

        def of_workers(dask_scheduler: Any) -> dict[str, Any]:
            return {address: worker.name for address, worker in dask_scheduler.workers.items()}

        names: dict[str, Any] = in_time(
            "asking the scheduler for its workers", lambda: self.client.run_on_scheduler(of_workers)
        )
        return names

    def restart(self) -> None:
        """Replace the processes of all workers: there is no other way to stop a thread that is stuck in a
        collective."""
        if self.spec.scheduler is None:
            host, port = self.spec.dashboard.rpartition(":")[0], self.cluster.scheduler.http_server.port
            self.close()
            if self.spec.dashboard != OFF:
                self.spec = replace(self.spec, dashboard=_again(f"{host}:{port}"))
            self._open()
        else:
            # Another run may have claimed the workers while the connection was lost.
            claim_workers(self.client, self.spec.scheduler, self.spec.run)
            gone = self.addresses
            # Dask raises KeyError for an unknown worker.
            names = self._names()
            if there := [address for address in gone if address in names]:
                try:
                    in_time(
                        "starting workers again",
                        lambda: self.client.restart_workers(there, timeout=START_SECONDS, raise_for_error=False),
                        2 * START_SECONDS,
                    )
                except ValueError as error:
                    raise NoWorkers(f"workers of {self.spec.scheduler} cannot be started again: {error}") from error
            self.addresses = self._wait(gone)

    def close(self) -> None:
        """End the processes started by this pool, even if they are busy."""
        for nanny in list(self.cluster.workers.values()) if self.cluster else ():
            # Otherwise the nanny replaces the killed process, and closing waits for the new one.
            nanny.close_gracefully("the pool closes")
        self._kill()
        # Errors of a scheduler after its workers were killed are irrelevant here.
        close_in_time(self._stack)
        # A nanny may meanwhile have started another process and left it behind. At exit, Python sends its children a
        # signal, which workers ignore, and waits for them, so such a process must be killed here.
        self._kill()

    def _kill(self) -> None:
        """Kill the worker processes that carry the mark of this pool."""
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                # Python's resource tracker may have inherited the mark but must not be killed.
                if child.environ().get(MARK) == self._mark and "spawn_main" in " ".join(child.cmdline()):
                    child.kill()


def _is_critical(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.CRITICAL


def _again(address: str) -> str:
    """Wait for the closed server to release its address, so that a dashboard that is open in a browser
    stays valid. Returns this address, or another one if it remains taken."""
    until = time.monotonic() + CLOSE_SECONDS
    while (found := free_address(address, lambda said: None)) != address and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _start(spec: WorkerSpec, mark: str) -> Any:
    # Same as `share_one_arena`, which would come too late for the threads that Dask creates at process start.
    environment = {"MALLOC_ARENA_MAX": 1, MARK: mark}
    common: dict[str, Any] = {
        "n_workers": spec.world,
        "threads_per_worker": THREADS,
        "memory_limit": 0,
        "death_timeout": START_SECONDS,
        "silence_logs": logging.CRITICAL,
        "host": "127.0.0.1",
        # Anyone who can connect to a scheduler or a worker can run code in it, and every user of the machine can reach
        # loopback. The key is created here, and exists only in this process and those that it starts.
        "security": Security.temporary(),
        **dashboard_options(spec.dashboard),
    }
    if spec.gpus:
        from dask_cuda import LocalCUDACluster  # a separate extra

        make = partial(LocalCUDACluster, **common, CUDA_VISIBLE_DEVICES=list(spec.gpus), device_memory_limit=0)
    else:
        make = partial(LocalCluster, **common, worker_class=PlainNanny)
    with settings_of_start({f"distributed.nanny.pre-spawn-environ.{name}": v for name, v in environment.items()}):
        return make()


def _host(address: str) -> str:
    return address.split("://")[-1].rsplit(":", 1)[0]
