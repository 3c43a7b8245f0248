"""Independent tasks, each on one item, run on workers of another scheduler (`machine.threads` runs them here)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from itertools import islice
from threading import Event
from typing import TypeVar

from distributed import Client, Future, KilledWorker

from pipeline.cluster.awake import NOTE_SECONDS, Awake, Silence, closed_in_time, in_time, paused_text
from pipeline.errors import PipelineError

T = TypeVar("T")


SILENT_SECONDS = 600.0
"""Time that a worker of another scheduler may be without a heartbeat. Most schedulers give its tasks to other workers
after half of this time."""

WORKERLESS_SECONDS = 120.0
"""Time that another scheduler may have no worker that takes tasks."""


class Tasks:
    """A cluster that runs as many tasks at a time as its workers have threads."""

    def __init__(self, client: Client, num_threads: int) -> None:
        self._client, self._silence = client, Silence()
        self._awake, self._had_workers, self._said = Awake(), 0.0, False
        self.num_threads = num_threads

    def each(self, name: str, work: Callable[[T], None], items: Iterable[T], tick_seconds: float) -> Iterator[list[T]]:
        """Do `work` on every item, at most one at a time per thread, which bounds memory. Yields the items done since
        the last yield, at least every `tick_seconds`. The dashboard groups tasks by `name`.

        Raises a task's exception, after the running tasks have ended. Raises PipelineError if workers died of a task,
        or if the remaining tasks will not be run. If the generator is closed early, it starts no further task, and
        waits for the running ones.
        """
        # Dask keys are global to the scheduler, and the same item may be given again.
        left, token = enumerate(items), uuid.uuid4().hex
        self._silence.begin_wait()
        flying: dict[Future, T] = {}
        ended = Event()
        try:
            while True:
                fresh = islice(left, self.num_threads - len(flying))
                for n, item in fresh:
                    future = self._client.submit(work, item, key=f"{name}-{n}-{token}", pure=False)
                    future.add_done_callback(lambda _: ended.set())
                    flying[future] = item
                if not flying:
                    return
                done = []
                for future in self._ended(flying, ended, tick_seconds):
                    done.append(flying.pop(future))
                    # Results of finished tasks are not fetched: they are None, and the worker may be gone.
                    if future.status != "finished":
                        future.result()
                yield done
        except (KilledWorker, CancelledError) as error:
            raise PipelineError(f"a worker of the cluster was lost, and its task could not be done: {error}") from error
        finally:
            with suppress(CancelledError, PipelineError):
                while flying:
                    for future in self._ended(flying, ended, tick_seconds):
                        del flying[future]

    def _ended(self, flying: Collection[Future], ended: Event, seconds: float) -> set[Future]:
        """Return the futures that ended within `seconds`; `ended` is set when one ends. Raises PipelineError if no
        other will end."""
        if not any(future.done() for future in flying) and not ended.wait(seconds):
            self._look()
        ended.clear()
        if done := {future for future in flying if future.done()}:
            self._silence.begin_wait()
        return done

    def _look(self) -> None:
        silent, now, paused = self._silence.look(self._client), self._awake.look(), self._silence.paused()
        without = now - self._had_workers
        if silent.keys() - paused.keys():
            self._had_workers, self._said = now, False
        elif without > WORKERLESS_SECONDS:
            raise PipelineError(_no_workers(paused, WORKERLESS_SECONDS))
        elif without > NOTE_SECONDS and not self._said:
            self._said = True
            print(f"waiting for workers: {_no_workers(paused, NOTE_SECONDS)}", flush=True)
        for address, seconds in silent.items():
            if seconds > SILENT_SECONDS:
                raise PipelineError(f"the worker {address} was not heard of for {seconds:.0f} s; end or restart it")
        if self._silence.idle_seconds > SILENT_SECONDS:
            raise PipelineError(
                f"no worker ran a task of this command for {SILENT_SECONDS:.0f} s; end what else uses the threads of "
                "their cluster"
            )


def _no_workers(paused: Mapping[str, float], seconds: float) -> str:
    """Say why no worker of a cluster takes tasks, for `seconds`. `paused`: see `Silence.paused`."""
    for address in paused:
        return paused_text(f"the worker {address}", paused[address])
    return f"the cluster had no workers for {seconds:.0f} s; start some"


@contextmanager
def tasks_of(scheduler: str) -> Iterator[Tasks]:
    """Use the cluster of an existing scheduler. Raises PipelineError if it has no workers or does not answer."""
    try:
        client = Client(scheduler)
    except (OSError, TimeoutError) as error:
        raise PipelineError(f"--scheduler {scheduler}: nobody answers there ({error})") from error
    with closed_in_time() as stack:
        stack.callback(client.close)
        num_threads = sum(in_time("asking the scheduler for its workers", client.nthreads).values())
        if not num_threads:
            raise PipelineError(f"--scheduler {scheduler} has no workers; start some")
        yield Tasks(client, num_threads)
