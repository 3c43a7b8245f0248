"""Dask: a cluster in this process, and the executor that runs stages on it."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, LocalCluster

from pipeline.cluster.awake import ANSWER_SECONDS, LOOK_SECONDS, Awake, closed_in_time, heard_of
from pipeline.errors import PipelineError
from pipeline.records import StageResult
from pipeline.stages import STAGES

SETTINGS = {
    # By the wall clock, and a worker in the scheduler's own process is dropped as any other: after every longer pause.
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "1h",
    # Each of a process's servers looks fifty times a second whether its loop is late: 1 % of a core for a worker.
    "distributed.admin.tick.interval": "1s",
}

_open: dict[str, Callable[[str, int], StageResult]] = {}
"""What each token stands for in this process. A task that Dask runs elsewhere, or after the run, finds nothing."""


def run_local_stage(stage: str, number: int, token: str, after: list[StageResult]) -> StageResult:
    """The one function that Dask runs. `after` is there to be waited for."""
    if token not in _open:
        raise RuntimeError(
            f"{stage} of block {number} was run for {token}, which is not open in this process: a stage has state "
            "and is never run again or elsewhere"
        )
    return _open[token](stage, number)


class InProcessCluster:
    """The scheduler and the one worker that live in this process."""

    def __init__(self, client: Client) -> None:
        """PipelineError: Dask has taken the worker for lost."""
        self._client, self._scheduler = client, client.cluster.scheduler
        # Not from the client: what that knows of workers is asked for every two seconds, and is empty at times.
        self.worker: Any = next(iter(client.cluster.workers.values()), None)
        self._awake, self._seen, self._since = Awake(), -1, 0.0
        self._check()

    def look(self, busy: bool, through: int) -> None:
        """Have a look, while something is waited for, at whether a task runs, and how many have. PipelineError: nothing
        will come any more."""
        now = self._awake.look()
        if busy or through != self._seen:
            self._seen, self._since = through, now
        self._check()
        if now - self._since > ANSWER_SECONDS:
            raise PipelineError(f"Dask has tasks for this process, and has run none of them for {ANSWER_SECONDS:.0f} s")
        self._client.loop.add_callback(self._wake)

    def _check(self) -> None:
        if self.worker is None or self.worker.address not in self._scheduler.workers:
            raise PipelineError("Dask has taken the worker in this process for lost")
        if self._client.status != "running":
            raise PipelineError(f"the connection to Dask's scheduler in this process is {self._client.status}")

    def _wake(self) -> None:
        """Send what waits to be sent together. The end of that wait is a time of the wall clock, and that of the timer
        one of the monotonic clock: a step backwards of either would make it longer by as much."""
        senders = (*self._scheduler.stream_comms.values(), *self._scheduler.client_comms.values())
        for sender in (self._client.scheduler_comm, self.worker.batched_stream, *senders):
            sender.next_deadline = None
            sender.waker.set()


class DaskExecutor:
    """One worker runs all stages, since they share its tiers; `train` has a thread of its own."""

    def __init__(self, client: Client, call: Callable[[str, int], StageResult]) -> None:
        self._client, self._call, self._here = client, call, InProcessCluster(client)
        self.address = self._here.worker.address
        self._lock, self._inside, self._through = Lock(), 0, 0
        self.token = uuid.uuid4().hex
        _open[self.token] = self._run

    def _run(self, stage: str, number: int) -> StageResult:
        with self._lock:
            self._inside += 1
        try:
            return self._call(stage, number)
        finally:
            with self._lock:
                self._inside, self._through = self._inside - 1, self._through + 1

    def submit(self, stage: str, number: int, after: list[Future]) -> Future:
        # Keys are global to the scheduler: the token keeps runs apart. The dashboard groups by the stage's name.
        with dask.annotate(executor="train" if stage == "train" else "default"):
            return self._client.submit(
                run_local_stage,
                stage,
                number,
                self.token,
                after,
                key=f"{stage}-{number}-{self.token}",
                pure=False,
                retries=0,
                workers=[self.address],
            )

    def result(self, future: Future) -> StageResult:
        self._wait([future])
        try:
            done: StageResult = future.result()
            return done
        except (CancelledError, KilledWorker) as error:
            raise PipelineError(f"Dask has given up a stage: {error}") from error

    def _wait(self, futures: list[Future]) -> None:
        """Return when all of them have ended. Raises PipelineError if nothing will come any more."""
        ended = heard_of(futures)
        while not all(future.done() for future in futures):
            if not ended.wait(LOOK_SECONDS):
                self._here.look(self._inside > 0, self._through)
            ended.clear()

    def settle(self, futures: list[Future]) -> None:
        with suppress(PipelineError):
            self._wait(futures)
        self.close()
        # Where Dask has lost its worker, the threads of that know nothing of it.
        while self._inside:
            time.sleep(LOOK_SECONDS / 100)

    def close(self) -> None:
        """Tasks of this token raise from now on."""
        _open.pop(self.token, None)


@contextmanager
def client_here(num_threads: int) -> Iterator[Client]:
    """A scheduler and a worker in this process, all their sockets on loopback."""
    with dask.config.set(SETTINGS), closed_in_time() as stack:
        cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=num_threads,
            processes=False,
            memory_limit=0,
            # What a task raises is told once, by who asked for it.
            silence_logs=logging.CRITICAL,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        )
        stack.enter_context(cluster)
        client = Client(cluster)
        stack.callback(client.close)
        yield client


@contextmanager
def local_client() -> Iterator[Client]:
    """For stages."""
    with client_here(len(STAGES) + 1) as client, ThreadPoolExecutor(1, thread_name_prefix="train") as thread:
        InProcessCluster(client).worker.executors["train"] = thread
        yield client


def dashboard_link(client: Client) -> str:
    """Where the dashboard listens; Dask's own link names the machine, where nothing does."""
    cluster: Any = client.cluster
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}/status"
