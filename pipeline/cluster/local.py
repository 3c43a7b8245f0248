"""Dask: a cluster in this process, and the executor that runs stages on it."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, LocalCluster

from pipeline.cluster.address import ANY_PORT
from pipeline.cluster.awake import ANSWER_SECONDS, LOOK_SECONDS, Awake, closed_in_time, heard_of
from pipeline.cluster.dashboard import PlainWorker, dashboard_options, mount
from pipeline.cluster.threads import end_threads, stage_threads
from pipeline.errors import OutOfTurn, PipelineError
from pipeline.machine.stuck import check_stuck, gave_up
from pipeline.records import StageResult
from pipeline.stages import STAGES

SETTINGS = {
    # This limit is on the wall clock: after a longer pause Dask would drop the worker in its own process, too.
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "1h",
    # By default each server of a process checks its event loop 50 times a second: 1 % of a core for a worker.
    "distributed.admin.tick.interval": "1s",
}

STARTS_IN_TURN = Lock()


@contextmanager
def settings_of_start(more: Mapping[str, Any]) -> Iterator[None]:
    """Have Dask read `SETTINGS` and `more` while it starts schedulers, workers and processes.

    Dask's configuration belongs to the whole process. A longer use would reach clusters of others, and if two uses
    ended in the order in which they began, a value of ours would stay."""
    # A start that hangs, and was given up, does not prevent the next one.
    alone = STARTS_IN_TURN.acquire(timeout=ANSWER_SECONDS)
    try:
        with dask.config.set(SETTINGS | dict(more)):
            yield
    finally:
        if alone:
            STARTS_IN_TURN.release()


_open: dict[str, Callable[[str, int], StageResult]] = {}
"""Function that runs stages in this process, by token. A task that Dask runs elsewhere, or after the run, finds
none."""


def run_local_stage(stage: str, number: int, token: str, after: list[StageResult]) -> StageResult:
    """Run a stage; the only function submitted to Dask here. `after` exists so that Dask waits for those tasks."""
    if token not in _open:
        raise OutOfTurn(
            f"{stage} of block {number} was called for run {token}, which is not open in this process: a stage "
            "has state, and is never run twice or elsewhere"
        )
    return _open[token](stage, number)


class InProcessCluster:
    """A Dask scheduler and its one worker, both in this process."""

    def __init__(self, client: Client) -> None:
        """Raises PipelineError if Dask has dropped the worker."""
        self._client, self._scheduler = client, client.cluster.scheduler
        # Not from the client: it polls the workers every two seconds, and its list is empty at times.
        self.worker: Any = next(iter(client.cluster.workers.values()), None)
        self._awake, self._seen, self._since = Awake(), -1, 0.0
        self._check()

    def look(self, busy: bool, through: int) -> None:
        """Check for progress while the caller waits. `busy`: a task is running; `through`: number of finished tasks.
        Raises PipelineError if no task will be run, and Stuck if one waits for a file that does not answer."""
        check_stuck()
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
        """Send Dask's batched messages now. Dask waits until a time of the wall clock, with a timer of the monotonic
        clock; a backwards step of either would delay the messages by as much."""
        senders = (*self._scheduler.stream_comms.values(), *self._scheduler.client_comms.values())
        for sender in (self._client.scheduler_comm, self.worker.batched_stream, *senders):
            sender.next_deadline = None
            sender.waker.set()


class DaskExecutor:
    """Runs all stages on one Dask worker, since they share its tiers; each stage has its own thread."""

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
        # Dask keys are global to the scheduler: the token separates runs. The dashboard groups by the stage's name.
        with dask.annotate(executor=stage):
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
        """Wait until all futures have ended. Raises PipelineError if Dask will not run their tasks."""
        ended = heard_of(futures)
        while not all(future.done() for future in futures):
            if not ended.wait(LOOK_SECONDS):
                self._here.look(self._inside > 0, self._through)
            ended.clear()

    def settle(self, futures: list[Future]) -> None:
        with suppress(PipelineError):
            self._wait(futures)
        self.close()
        # If Dask has dropped its worker, the worker's threads may still be running stages.
        while self._inside and not gave_up():
            time.sleep(LOOK_SECONDS / 100)

    def close(self) -> None:
        """Close the token: later tasks that carry it raise."""
        _open.pop(self.token, None)


@contextmanager
def client_here(num_threads: int, dashboard: str = ANY_PORT) -> Iterator[Client]:
    """Start a scheduler and a worker in this process, with all sockets on loopback but that of the dashboard."""
    with closed_in_time() as stack:
        with settings_of_start({}):
            cluster = LocalCluster(
                n_workers=1,
                threads_per_worker=num_threads,
                processes=False,
                memory_limit=0,
                # A task's exception is reported once, by the caller.
                silence_logs=logging.CRITICAL,
                worker_class=PlainWorker,
                **dashboard_options(dashboard),
            )
        stack.enter_context(cluster)
        mount(cluster.scheduler, dashboard)
        client = Client(cluster)
        stack.callback(client.close)
        yield client


@contextmanager
def local_client(dashboard: str = ANY_PORT) -> Iterator[Client]:
    """Start a client for stages, with a thread for each. `dashboard`: its address."""
    with client_here(len(STAGES) + 1, dashboard) as client, ExitStack() as stack:
        threads = stage_threads()
        stack.callback(lambda: end_threads(threads.values()))
        InProcessCluster(client).worker.executors.update(threads)
        yield client
