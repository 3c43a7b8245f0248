"""Dask workers of their own processes: a cluster that is started for a run, or one that is there already."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import dask
from distributed import Client, LocalCluster

from pipeline.cluster.local import SETTINGS
from pipeline.cluster.member import Machine, Station
from pipeline.crew import Team
from pipeline.failures import PipelineError
from pipeline.gpu import identify
from pipeline.stages import STAGES

THREADS = len(STAGES) + 4
"""Of a worker: one for each stage, one that takes parcels, one for what the driver asks, and two to spare."""
START_SECONDS = 120.0
STARTS = 3
"""Of a cluster: Dask gives up where one of its processes dies before it is up."""


class NoWorkers(PipelineError):
    """There are fewer workers than are needed."""


class Pool:
    """The workers of a team, in an order that stays as long as they do."""

    def __init__(self, team: Team, silent_seconds: float = 30.0) -> None:
        """Start a cluster on this machine, all its sockets on loopback; or use that of the team's scheduler, as it is
        configured. `silent_seconds`: a worker that was started here, and not heard of for so long, is ended. NoWorkers:
        they did not come."""
        self.team, self.world = team, team.world
        self._silent_seconds = silent_seconds
        self._pids: Sequence[int] = ()
        self._open()

    def _open(self) -> None:
        """NoWorkers: processes of a cluster that is started here died, each time, before it was up."""
        failed: Exception | None = None
        for _ in range(STARTS if self.team.scheduler is None else 1):
            self._stack, self._pids = ExitStack(), ()
            try:
                return self._connect()
            except (RuntimeError, OSError) as error:
                self.close()
                failed = error
        raise NoWorkers(f"{self.world} workers did not come up: {failed}") from failed

    def _connect(self) -> None:
        # Dask waits for whoever does not answer, where it asks all workers at once.
        settings = SETTINGS | {
            "distributed.scheduler.worker-ttl": f"{self._silent_seconds} s",
            # As `share_one_arena`, which comes too late for the threads that Dask starts with a process.
            "distributed.nanny.pre-spawn-environ.MALLOC_ARENA_MAX": 1,
        }
        self._stack.enter_context(dask.config.set(settings))
        self.cluster: Any = None
        if self.team.scheduler is None:
            self.cluster = self._stack.enter_context(_start(self.team))
        self.client = self._stack.enter_context(Client(self.cluster or self.team.scheduler))
        self.client.register_plugin(Station(ours=self.cluster is not None))
        self.addresses = self._wait(())

    def know(self, machines: Sequence[Machine]) -> None:
        """What the workers say of themselves."""
        self._pids = [machine.pid for machine in machines]

    def _wait(self, gone: Sequence[str]) -> list[str]:
        """The addresses of the workers, in the order of their names, once there are enough besides those."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            workers = {a: name for a, name in self.client.run_on_scheduler(_names).items() if a not in gone}
            if len(workers) >= self.world:
                return sorted(workers, key=lambda a: (_host(a), f"{workers[a]:>9}", a))[: self.world]
            time.sleep(0.05)
        raise NoWorkers(f"{len(workers)} workers came in {START_SECONDS:.0f} s, and {self.world} are needed")

    def devices(self, name: str) -> list[str]:
        """Models of what the workers train on, where the workflow asks for this device; each once."""
        found: dict[str, tuple[str, str]] = self.client.run(identify, name, workers=list(self.addresses))
        return sorted({model for model, _ in found.values()})

    def silent_seconds(self) -> dict[str, float]:
        """For how long each of the workers has not been heard of; those that are gone are not in it."""
        heard: dict[str, float] = self.client.run_on_scheduler(_silences)
        return {address: heard[address] for address in self.addresses if address in heard}

    def restart(self) -> None:
        """New processes in place of all workers: a thread in a collective cannot be stopped otherwise."""
        if self.cluster:
            self.close()
            self._open()
        else:
            gone = self.addresses
            # Asked for one that it does not know, Dask raises KeyError.
            names = self.client.run_on_scheduler(_names)
            if there := [address for address in gone if address in names]:
                try:
                    self.client.restart_workers(there, timeout=START_SECONDS, raise_for_error=False)
                except ValueError as error:
                    raise NoWorkers(f"workers of {self.team.scheduler} cannot be started again: {error}") from error
            self.addresses = self._wait(gone)

    def close(self) -> None:
        """End the processes that were started here, whatever they are doing."""
        if self.cluster:
            for pid in self._pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # Others may have these numbers later.
            self._pids = ()
        # What a scheduler says that has lost its workers is of no interest any more.
        with suppress(TimeoutError, OSError):
            self._stack.close()


def _start(team: Team) -> Any:
    common: dict[str, Any] = {
        "n_workers": team.world,
        "threads_per_worker": THREADS,
        "memory_limit": 0,
        "silence_logs": logging.CRITICAL,
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "worker_dashboard_address": "127.0.0.1:0",
    }
    gpus = [seat.gpu.uuid for seat in team.seats if seat.gpu]
    if gpus:
        from dask_cuda import LocalCUDACluster  # an extra of its own

        return LocalCUDACluster(**common, CUDA_VISIBLE_DEVICES=gpus, device_memory_limit=0)
    return LocalCluster(**common, processes=True)


def _host(address: str) -> str:
    return address.split("://")[-1].rsplit(":", 1)[0]


def _names(dask_scheduler: Any) -> dict[str, Any]:
    return {address: worker.name for address, worker in dask_scheduler.workers.items()}


def _silences(dask_scheduler: Any) -> dict[str, float]:
    return {address: time.time() - worker.last_seen for address, worker in dask_scheduler.workers.items()}
