"""Dask: a cluster in this process, and the executor that runs stages on it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, Future, LocalCluster, wait

from pipeline.records import Done
from pipeline.stages import STAGES

SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "1h",
    # Each of a process's servers looks fifty times a second whether its loop is late: 1 % of a core for a worker.
    "distributed.admin.tick.interval": "1s",
}

_open: dict[str, Callable[[str, int], Done]] = {}
"""What each token stands for in this process. A task that Dask runs elsewhere, or after the run, finds nothing."""


def run_stage(stage: str, number: int, token: str, after: list[Done]) -> Done:
    """The one function that Dask runs. `after` is there to be waited for."""
    if token not in _open:
        raise RuntimeError(
            f"{stage} of block {number} was run for {token}, which is not open in this process: a stage has state "
            "and is never run again or elsewhere"
        )
    return _open[token](stage, number)


class DaskExecutor:
    """One worker runs all stages, since they share its tiers; `train` has a thread of its own."""

    def __init__(self, client: Client, call: Callable[[str, int], Done]) -> None:
        self._client = client
        self._worker = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
        self.token = uuid.uuid4().hex
        _open[self.token] = call

    def submit(self, stage: str, number: int, after: list[Future]) -> Future:
        # Keys are global to the scheduler: the token keeps runs apart. The dashboard groups by the stage's name.
        with dask.annotate(executor="train" if stage == "train" else "default"):
            return self._client.submit(
                run_stage,
                stage,
                number,
                self.token,
                after,
                key=f"{stage}-{number}-{self.token}",
                pure=False,
                retries=0,
                workers=[self._worker],
            )

    def result(self, future: Future) -> Done:
        done: Done = future.result()
        return done

    def settle(self, futures: list[Future]) -> None:
        if futures:
            wait(futures)

    def close(self) -> None:
        """Tasks of this token raise from now on."""
        _open.pop(self.token, None)


@contextmanager
def local_client() -> Iterator[Client]:
    """A scheduler and a worker in this process, all their sockets on loopback."""
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=1,
            threads_per_worker=len(STAGES) + 1,
            processes=False,
            memory_limit=0,
            # What a stage raises is told once, by the driver.
            silence_logs=logging.CRITICAL,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
        ThreadPoolExecutor(1, thread_name_prefix="train") as thread,
    ):
        for worker in cluster.workers.values():
            worker.executors["train"] = thread
        yield client


def dashboard_link(client: Client) -> str:
    """Where the dashboard listens; Dask's own link names the machine, where nothing does."""
    cluster: Any = client.cluster
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}/status"
