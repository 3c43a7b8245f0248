"""Time limits for waits for Dask. After a suspension of this process they may be over at once; the driver then restarts
the workers from the last commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Thread
from typing import Any, TypeVar

from distributed import Client

from pipeline.errors import PipelineError

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Seconds between checks for progress while the driver waits."""
CLOSE_SECONDS = 10.0
"""Time limit, in seconds, for Dask to close a cluster and to release its port."""
ANSWER_SECONDS = 30.0
"""Time limit, in seconds, for replies to small queries."""
NOTE_SECONDS = 20.0
"""Seconds after which a waiting call reports what it is waiting for."""


class NoAnswer(PipelineError):
    """A call did not return in time."""


def in_time(what: str, call: Callable[[], T], seconds: float = ANSWER_SECONDS) -> T:
    """Run `call` in a thread, and return its result or raise its exception. If it takes longer than `seconds`, abandon
    the thread and raise NoAnswer. If it takes longer than `NOTE_SECONDS`, and `seconds` allows that, print a line.
    `what`: purpose of the call, for both messages."""
    outcome: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(min(NOTE_SECONDS, seconds))
    if thread.is_alive() and seconds > NOTE_SECONDS:
        print(f"waiting for Dask, {what}: {NOTE_SECONDS:.0f} s of at most {seconds:.0f}", flush=True)
        thread.join(seconds - NOTE_SECONDS)
    if thread.is_alive():
        raise NoAnswer(f"no answer from Dask in {seconds:.0f} s, {what}: check whether its scheduler and workers run")
    if raised:
        raise raised[0]
    return outcome[0]


class Silence:
    """Measures, at each call of `look`, how many seconds each worker of a scheduler has been without a new heartbeat or
    paused by Dask, and how many seconds no task of the client has run. A caller looks every LOOK_SECONDS of a wait."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, float]] = {}
        # No worker is replaced when these end a run, so they count looks: a suspension adds nothing.
        self.idle_seconds = 0.0
        """Seconds of the wait for which no task of the client has run."""
        self.paused: dict[str, float] = {}
        """Seconds of the wait for which workers have been paused, by address. Dask assigns no tasks to workers with
        memory near its limit."""

    def look(self, client: Client) -> dict[str, float]:
        """Return the seconds without a heartbeat of each worker of the scheduler, by address. Raises NoAnswer if the
        scheduler does not respond."""

        # last_seen is a wall-clock time of the scheduler, compared only for equality, to detect a new heartbeat. A
        # nested function is pickled by value, so the process of an external scheduler does not need this package.
        def seen_by(client: str, dask_scheduler: Any) -> dict[str, tuple[float, bool, bool]]:
            mine = dask_scheduler.clients[client].wants_what if client in dask_scheduler.clients else ()
            return {
                address: (w.last_seen, w.status.name == "paused", any(task in mine for task in w.executing))
                for address, w in dask_scheduler.workers.items()
            }

        seen = in_time("asking the scheduler of its workers", lambda: client.run_on_scheduler(seen_by, client.id))
        now, before, paused = time.monotonic(), self._heard, self.paused
        self._heard = {
            address: before[address] if address in before and before[address][0] == at else (at, now)
            for address, (at, _, _) in seen.items()
        }
        self.paused = {
            address: paused.get(address, 0.0) + LOOK_SECONDS for address, (_, is_so, _) in seen.items() if is_so
        }
        self.idle_seconds = 0.0 if any(runs for _, _, runs in seen.values()) else self.idle_seconds + LOOK_SECONDS
        return {address: now - since for address, (_, since) in self._heard.items()}

    def begin_wait(self) -> None:
        self.idle_seconds, self.paused = 0.0, {}


def paused_text(worker: str, seconds: float) -> str:
    return (
        f"{worker} was paused by Dask {seconds:.0f} s ago, as its memory is near its limit; start it with a larger one "
        "(--memory-limit; 0: none)"
    )


def close_in_time(stack: ExitStack) -> None:
    """Close a stack within CLOSE_SECONDS. Anything that does not close in time is left until process exit."""
    with suppress(NoAnswer, OSError):
        in_time("closing", stack.close, CLOSE_SECONDS)
