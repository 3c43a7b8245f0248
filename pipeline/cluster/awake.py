"""Limits of waits, in seconds that this process was awake for: a pause of any length, or a step of a clock, uses up
next to nothing of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Thread
from typing import Any, TypeVar

from distributed import Client, Future

from pipeline.errors import PipelineError

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""The time from one look at whether there is progress to the next, while the driver waits."""
ANSWER_SECONDS = 30.0
"""The time that whoever is asked for a few numbers has to answer."""


class NoAnswer(PipelineError):
    """A call did not return in time."""


class Awake:
    """A clock that goes on while it is looked at. No look adds more than two intervals."""

    def __init__(self) -> None:
        self._at, self.seconds = time.monotonic(), 0.0

    def look(self) -> float:
        now = time.monotonic()
        self.seconds += min(max(0.0, now - self._at), 2 * LOOK_SECONDS)
        self._at = now
        return self.seconds


def in_time(what: str, call: Callable[[], T], seconds: float = ANSWER_SECONDS) -> T:
    """Return, or raise, what a call does. Raises NoAnswer, which says `what` the call was for, if it does neither in so
    many seconds; it is left to itself then."""
    outcome: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            raised.append(error)

    thread, awake = Thread(target=run, daemon=True), Awake()
    thread.start()
    # Some of Dask's calls have limits of their own, by clocks that go on while this process does not.
    while thread.is_alive():
        thread.join(LOOK_SECONDS)
        if thread.is_alive() and awake.look() > seconds:
            raise NoAnswer(f"no answer from Dask in {seconds:.0f} s, {what}: see whether its scheduler and workers run")
    if raised:
        raise raised[0]
    return outcome[0]


def heard_of(futures: Iterable[Future]) -> Event:
    """An event that is set whenever one of the futures ends. Waiting for it takes none of Dask's timers, which stand
    still after a step backwards of the monotonic clock, for as long as that was."""
    ended = Event()
    for future in futures:
        future.add_done_callback(lambda _: ended.set())
    return ended


class Silence:
    """For how many seconds each worker of a scheduler was not heard of, as far as somebody looked."""

    def __init__(self) -> None:
        self._awake = Awake()
        self._heard: dict[str, tuple[float, float]] = {}

    def look(self, client: Client) -> dict[str, float]:
        """Return seconds by address; workers that are gone are not in it. Raises NoAnswer if the scheduler does not
        answer."""

        # By the scheduler's wall clock: this tells whether there was another heartbeat, and no more. A function of a
        # function travels whole; the scheduler of others need not have this package.
        def last_seen(dask_scheduler: Any) -> dict[str, float]:
            return {address: worker.last_seen for address, worker in dask_scheduler.workers.items()}

        seen = in_time("asking the scheduler of its workers", lambda: client.run_on_scheduler(last_seen))
        now, before = self._awake.look(), self._heard
        self._heard = {
            address: before[address] if address in before and before[address][0] == at else (at, now)
            for address, at in seen.items()
        }
        return {address: now - since for address, (_, since) in self._heard.items()}


@contextmanager
def closed_in_time() -> Iterator[ExitStack]:
    """Close what is entered; whatever cannot be is left to the end of the process."""
    stack = ExitStack()
    try:
        yield stack
    finally:
        with suppress(NoAnswer, OSError):
            in_time("closing", stack.close)
