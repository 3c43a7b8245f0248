"""Dask: a cluster in this process, and the executor that runs stages on it."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Lock
from typing import Any

import dask
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from distributed import Client, Future, KilledWorker, LocalCluster
from distributed.batched import BatchedSend
from distributed.comm import CommClosedError

from pipeline.cluster.address import ANY_PORT
from pipeline.cluster.dashboard import PlainWorker, dashboard_options, mount
from pipeline.cluster.threads import end_threads, stage_threads
from pipeline.cluster.waits import ANSWER_SECONDS, LOOK_SECONDS, close_in_time
from pipeline.errors import OutOfTurn, PipelineError
from pipeline.records import StageResult
from pipeline.stages import STAGES


class StageGraph:
    """Tasks with keys STAGE-BLOCK-RANK-RUN, sent to Dask in one graph: with one message per task, Dask would occupy its
    event loop and the GIL several times as long. The dashboard groups them by stage; each runs on the worker of its
    rank, in the thread of its stage. Keys are global to a scheduler."""

    def __init__(self, client: Client, addresses: Sequence[str]) -> None:
        """`addresses`: addresses of the workers, by rank."""
        self._client, self._unsent = client, dict[str, Task]()
        self.futures: dict[str, Future] = {}
        """Futures of the tasks sent, by key. Dask drops a task that no future and no other task needs."""

        # Nested functions are pickled by value, so the process of an external scheduler does not need this package.
        def stage_of(key: str) -> str:
            return key.split("-")[0]

        def worker_of(key: str) -> list[str]:
            return [addresses[int(key.split("-")[2])]]

        self._annotations = {"executor": stage_of, "workers": worker_of}

    def add(self, key: str, run: Callable[..., object], *args: Any, after: Sequence[str]) -> str:
        """Add a task that calls `run`, with the results of the tasks `after` as its last arguments. Returns its key."""
        self._unsent[key] = Task(key, run, *args, *map(TaskRef, after))
        return key

    def send(self) -> None:
        """Send the tasks added since the last call."""
        unsent, self._unsent = self._unsent, {}
        if unsent:
            # With a token, Dask does not hash the graph.
            graph = LLGExpr(unsent, _determ_token=uuid.uuid4().hex)
            with dask.annotate(**self._annotations):
                self.futures |= zip(unsent, self._client.get(graph, list(unsent), sync=False, retries=0), strict=True)


SETTINGS = {
    # This limit uses the wall clock: after a longer pause, Dask would drop even the worker in its own process.
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "1h",
    # By default, each server in a process checks its event loop 50 times per second and reads the system load twice per
    # second: 1 % and 0.2 % of a core.
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "2s",
}

STARTS_IN_TURN = Lock()


@contextmanager
def settings_of_start(more: Mapping[str, Any]) -> Iterator[None]:
    """Apply `SETTINGS` and `more` to Dask while it starts schedulers, workers and processes.

    Dask's configuration is global to the process. Held for longer, the settings would leak into other clusters, and if
    two overlapping uses ended in the order in which they started, a value of ours would remain."""
    # A hung start that was abandoned must not block the next one.
    alone = STARTS_IN_TURN.acquire(timeout=ANSWER_SECONDS)
    try:
        with dask.config.set(SETTINGS | dict(more)):
            yield
    finally:
        if alone:
            STARTS_IN_TURN.release()


_open: dict[str, Callable[[str, int], None]] = {}
"""Functions that run stages in this process, by token. A task that Dask runs elsewhere, or after the run, finds
none."""


def run_local_stage(stage: str, number: int, token: str, *after: None) -> None:
    """Run a stage. The only function submitted to Dask here. `after` exists only so that Dask waits for those tasks."""
    if token not in _open:
        raise OutOfTurn(
            f"{stage} of block {number} was called for run {token}, which is not open in this process: a stage "
            "has state, and is never run twice or elsewhere"
        )
    _open[token](stage, number)


class InProcessCluster:
    """A Dask scheduler and its one worker, both in this process."""

    def __init__(self, client: Client) -> None:
        """Raises PipelineError if Dask has dropped the worker."""
        self._client, self._scheduler = client, client.cluster.scheduler
        # Not from the client: it polls the workers every two seconds, and its list is sometimes empty.
        self.worker: Any = next(iter(client.cluster.workers.values()), None)
        self._seen, self._idle_seconds = "", 0.0
        self._check()

    def look(self, busy: bool, last: str, waited: float) -> None:
        """Check for progress while the caller waits. `busy`: a task is running; `last`: the last task to end; `waited`:
        seconds since the last call, without those of a suspension. Raises PipelineError if Dask no longer runs
        tasks."""
        self._idle_seconds = 0.0 if busy or last != self._seen else self._idle_seconds + waited
        self._seen = last
        self._check()
        if self._idle_seconds > ANSWER_SECONDS:
            raise PipelineError(f"Dask has tasks for this process, but has run none of them for {ANSWER_SECONDS:.0f} s")

    def _check(self) -> None:
        if self.worker is None or self.worker.address not in self._scheduler.workers:
            raise PipelineError("Dask considers the worker in this process lost")
        if self._client.status != "running":
            raise PipelineError(f"the connection to Dask's scheduler in this process is {self._client.status}")


def senders(client: Client) -> list[BatchedSend]:
    """Senders of all messages between the client, the scheduler and the worker in this process."""
    scheduler, (worker,) = client.cluster.scheduler, client.cluster.workers.values()
    comms = *scheduler.stream_comms.values(), *scheduler.client_comms.values()
    return [client.scheduler_comm, worker.batched_stream, *comms]


def send_at_once(sender: BatchedSend) -> None:
    """Make a Dask sender between two parts of this process deliver messages in the next iteration of the event loop.

    By default, a sender waits a few ms after each message, until a wall-clock time but with a monotonic timer: a
    backward step of either clock would delay messages by that step. Between the end of one task and the start of the
    next, these waits add several ms, and their timers take a third of the event loop's CPU time."""

    def pass_on() -> None:
        messages, sender.buffer = sender.buffer, []
        if messages and not sender.closed():
            sender.comm._write_q.put_nowait(messages)

    def send(*messages: Any) -> None:
        if sender.closed():
            raise CommClosedError(f"the connection {sender.comm} is closed")
        if not sender.buffer:
            sender.loop.add_callback(pass_on)
        sender.buffer.extend(messages)

    sender.send = send


class DaskExecutor:
    """Runs all stages on one Dask worker, since they share its tiers. Each stage has its own thread. Results stay in
    this process: Dask learns only that a task has ended."""

    def __init__(self, client: Client, call: Callable[[str, int], StageResult]) -> None:
        self._call, self._here = call, InProcessCluster(client)
        self._graph = StageGraph(client, [self._here.worker.address])
        self._results: dict[str, StageResult] = {}
        self._inside, self._failed, self._last = set[str](), False, ""
        self._awaited, self._ended = "", Event()
        self.token = uuid.uuid4().hex
        _open[self.token] = self._run

    def _key(self, stage: str, number: int) -> str:
        return f"{stage}-{number}-0-{self.token}"

    def _run(self, stage: str, number: int) -> None:
        key = self._key(stage, number)
        self._inside.add(key)
        try:
            self._results[key] = self._call(stage, number)
        except BaseException:
            self._failed = True
            raise
        finally:
            self._inside.discard(key)
            self._last = key
            if self._failed or key == self._awaited:
                self._ended.set()

    def submit(self, stage: str, number: int, after: list[str]) -> str:
        return self._graph.add(self._key(stage, number), run_local_stage, stage, number, self.token, after=after)

    def result(self, key: str) -> StageResult:
        self._graph.send()
        self._awaited, future = key, self._graph.futures[key]
        self._wait(lambda: key in self._results or future.done())
        del self._graph.futures[key]
        try:
            return self._results.pop(key) if key in self._results else future.result()
        except (CancelledError, KilledWorker) as error:
            raise PipelineError(f"Dask has given up a stage: {error}") from error

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until `is_over` returns True. Raises PipelineError if Dask no longer runs tasks."""
        while not is_over():
            # Dask fails the tasks that depend on a failed one slightly later, without calling `_run`.
            seconds = LOOK_SECONDS / 100 if self._failed else LOOK_SECONDS
            if not self._ended.wait(seconds):
                self._here.look(bool(self._inside), self._last, seconds)
            self._ended.clear()

    def settle(self, keys: list[str]) -> None:
        self._failed = True
        with suppress(PipelineError):
            self._wait(lambda: all(future.done() for future in self._graph.futures.values()))
        self.close()
        # If Dask has dropped its worker, the worker's threads may still be running stages.
        while self._inside:
            time.sleep(LOOK_SECONDS / 100)

    def close(self) -> None:
        """Invalidate the token: later tasks that carry it raise."""
        _open.pop(self.token, None)


@contextmanager
def local_client(dashboard: str = ANY_PORT) -> Iterator[Client]:
    """Start a scheduler and a worker in this process, with one thread per stage. All sockets are on loopback, except
    that of the dashboard. `dashboard`: address of the dashboard."""
    stack = ExitStack()
    try:
        with settings_of_start({}):
            cluster = LocalCluster(
                n_workers=1,
                threads_per_worker=len(STAGES) + 1,
                processes=False,
                memory_limit=0,
                # The caller reports the exception of a task, once.
                silence_logs=logging.CRITICAL,
                worker_class=PlainWorker,
                **dashboard_options(dashboard),
            )
        stack.enter_context(cluster)
        mount(cluster.scheduler, dashboard)
        client = Client(cluster)
        stack.callback(client.close)
        for sender in senders(client):
            send_at_once(sender)
        threads = stage_threads()
        stack.callback(lambda: end_threads(threads.values()))
        InProcessCluster(client).worker.executors.update(threads)
        yield client
    finally:
        close_in_time(stack)
