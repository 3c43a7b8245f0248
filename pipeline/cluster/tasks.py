"""Tasks that depend on nothing but their item, on threads of this process or on workers of another scheduler."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import dask
from distributed import Client, Future, LocalCluster, wait
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from pipeline.cluster.local import SETTINGS
from pipeline.failures import PipelineError

T = TypeVar("T")


class Tasks:
    """A cluster that runs as many tasks at a time as its workers have threads."""

    def __init__(self, client: Client, num_threads: int) -> None:
        self._client = client
        self.num_threads = num_threads

    def each(self, name: str, work: Callable[[T], None], items: Iterable[T], tick_seconds: float) -> Iterator[list[T]]:
        """Do `work` on every item, at most one at a time in a thread: memory is that of so many items. Yields what
        was done since it last did, at least once in `tick_seconds`. The dashboard groups by `name`.

        What a task raises is raised here, after those beside it have ended; PipelineError: workers died of a task.
        A generator that is closed early begins nothing more, and waits as well.
        """
        # Keys are global to the scheduler, and the same item may come again.
        left, token = enumerate(items), uuid.uuid4().hex
        flying: dict[Future, T] = {}
        try:
            while True:
                fresh = islice(left, self.num_threads - len(flying))
                flying |= {
                    self._client.submit(work, item, key=f"{name}-{n}-{token}", pure=False): item for n, item in fresh
                }
                if not flying:
                    return
                done = []
                for future in _ended(flying, tick_seconds):
                    done.append(flying.pop(future))
                    future.result()
                yield done
        except (KilledWorker, FutureCancelledError) as error:
            raise PipelineError(f"a worker of the cluster was lost, and its task could not be done: {error}") from error
        finally:
            if flying:
                wait(list(flying))


def _ended(flying: Iterable[Future], seconds: float) -> set[Future]:
    try:
        ended: set[Future] = wait(list(flying), timeout=seconds, return_when="FIRST_COMPLETED").done
    except TimeoutError:
        return set()
    return ended


@contextmanager
def local_tasks(num_threads: int) -> Iterator[Tasks]:
    """A cluster in this process, all its sockets on loopback."""
    common: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=1,
            threads_per_worker=num_threads,
            processes=False,
            memory_limit=0,
            # What a task raises is told once, by who asked for it.
            silence_logs=logging.CRITICAL,
            **common,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield Tasks(client, num_threads)


@contextmanager
def tasks_of(scheduler: str) -> Iterator[Tasks]:
    """A cluster that is there already. PipelineError: it has no workers, or does not answer."""
    try:
        client = Client(scheduler)
    except (OSError, TimeoutError) as error:
        raise PipelineError(f"--scheduler {scheduler}: nobody answers there ({error})") from error
    with client:
        num_threads = sum(client.nthreads().values())
        if not num_threads:
            raise PipelineError(f"--scheduler {scheduler} has no workers; start some")
        yield Tasks(client, num_threads)
