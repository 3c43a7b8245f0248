"""Waiting for tasks, with detection of lost workers. Dask does not report these: a task pinned to a lost worker stays
pending forever, and tasks whose results were lost with the worker are rerun."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event
from typing import Any

from distributed import Future, KilledWorker
from distributed.comm import CommClosedError

from pipeline.cluster.crew import WorkerLost
from pipeline.cluster.pool import WorkerPool
from pipeline.cluster.waits import LOOK_SECONDS, NOTE_SECONDS, NoAnswer, Silence, in_time, paused_text
from pipeline.errors import LostTouch, OutOfTurn, PipelineError

PAUSED_SECONDS = 90.0
"""Maximum time, in seconds, for which Dask may pause a worker: shorter than the timeout of collectives in which others
wait for it (`workers.timeout_seconds`)."""
IDLE_SECONDS = 600.0
"""Maximum time, in seconds, during a wait in which no task of the run runs on any worker: other work on the cluster may
occupy all threads."""


class Watch:
    def __init__(self, pool: WorkerPool, silence_limit: float) -> None:
        """`silence_limit`: seconds without a heartbeat after which a worker is considered lost."""
        self._pool, self._longest_silent = pool, silence_limit
        self._silence = Silence()

    def results(self, futures: Sequence[Future]) -> list[Any]:
        """Wait for tasks and return their results. Raises the exception of the first task that fails, without waiting
        for the others. Raises WorkerLost if the scheduler does not respond, or if a worker is gone, sent no heartbeat
        for too long, or was missing from a collective, and PipelineError if a worker is paused, or no worker runs
        tasks, for too long."""
        try:
            self._wait(futures)
            return [self._fetch(future) for future in futures]
        except NoAnswer as error:
            raise WorkerLost(str(error)) from error

    def _wait(self, futures: Sequence[Future]) -> None:
        ended, begun, has_said = Event(), time.monotonic(), False
        for future in futures:
            future.add_done_callback(lambda _: ended.set())
        self._silence.begin_wait()
        while not all(future.done() for future in futures):
            if not ended.wait(LOOK_SECONDS):
                self._look()
                if not has_said and time.monotonic() - begun > NOTE_SECONDS:
                    has_said = True
                    self._say_what(futures)
            ended.clear()
            for future in futures:
                if future.status not in ("pending", "finished"):
                    self._fail(future)

    def _say_what(self, futures: Sequence[Future]) -> None:
        # Keys end with an id that is meaningless to users.
        names = sorted({str(future.key).rpartition("-")[0] for future in futures if not future.done()})
        why = [
            paused_text(f"worker {rank} ({address})", self._silence.paused[address])
            for rank, address in enumerate(self._pool.addresses)
            if address in self._silence.paused
        ]
        print("; ".join([f"waiting for workers: {', '.join(names)}", *why]), flush=True)

    def _fetch(self, future: Future) -> Any:
        """Fetch the result of a finished task. The worker that holds it may be gone."""
        while True:
            # Checked first, since the task itself may have raised a TimeoutError.
            if future.status not in ("pending", "finished"):
                self._fail(future)
            try:
                return future.result(timeout=LOOK_SECONDS)
            except TimeoutError:
                self._look()
            except Exception:
                self._fail(future)

    def _fail(self, future: Future) -> None:
        """Raise the cause of a failed task: WorkerLost if a worker is gone (the scheduler may report that slightly
        later than the failure), else the exception of the task."""
        error = in_time("fetching an error", future.exception) if future.status == "error" else None
        if error is None or isinstance(error, (KilledWorker, CommClosedError, LostTouch, OutOfTurn)):
            raise WorkerLost(f"a worker is gone: {error or 'its task was cancelled'}") from error
        for _ in range(10):
            self._look()
            time.sleep(LOOK_SECONDS / 10)
        if isinstance(error, (PipelineError, ValueError, OSError)):
            raise error
        raise PipelineError(f"{type(error).__name__}: {error}") from error

    def _look(self) -> None:
        silent = self._silence.look(self._pool.client)
        for rank, address in enumerate(self._pool.addresses):
            if address not in silent:
                raise WorkerLost(f"worker {rank} ({address}) is gone")
            if silent[address] > self._longest_silent:
                raise WorkerLost(f"worker {rank} ({address}) has not been heard from for {silent[address]:.0f} s")
            if (paused := self._silence.paused.get(address, 0.0)) > PAUSED_SECONDS:
                raise PipelineError(paused_text(f"worker {rank} ({address})", paused))
        if self._silence.idle_seconds > IDLE_SECONDS:
            raise PipelineError(
                f"no worker ran a task of this run for {IDLE_SECONDS:.0f} s; end whatever else uses the threads of "
                "their cluster"
            )
