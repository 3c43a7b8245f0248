"""Times of a worker's communication with others, measured by wrapping its functions in the worker's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

from distributed import WorkerPlugin

from pipeline.comm.exchange import Exchange
from pipeline.comm.group import Group

TIMED = ((Exchange, "fetch"), (Exchange, "push_gradients"), (Group, "all_to_all"))
"""Timed methods. `fetch` and `push_gradients` gather or sum rows around an all_to_all."""
STEPS = "summing"
"""Timed generator that sums dense gradients and agreements. The time covers its steps, not the work between them."""
END = object()
_calls: dict[str, list[tuple[float, float]]] = {name: [] for name in (*(name for _, name in TIMED), STEPS)}
"""Begin and end of each call in this process, by name."""


class Timers(WorkerPlugin):
    name = "timers"

    def setup(self, worker: Any) -> None:
        for kind, name in TIMED:
            setattr(kind, name, _timed(getattr(kind, name), _calls[name]))
        setattr(Group, STEPS, _timed_steps(getattr(Group, STEPS), _calls[STEPS]))


def seconds_of_calls(begin: float, end: float) -> dict[str, float]:
    """Seconds that this process spent in each, between two values of `time.perf_counter`."""
    return {name: sum(b - a for a, b in seen if a >= begin and b <= end) for name, seen in _calls.items()}


def _timed(method: Callable[..., Any], seen: list[tuple[float, float]]) -> Callable[..., Any]:
    @wraps(method)
    def timed(*args: Any) -> Any:
        begun = time.perf_counter()
        result = method(*args)
        seen.append((begun, time.perf_counter()))
        return result

    return timed


def _timed_steps(method: Callable[..., Iterator[None]], seen: list[tuple[float, float]]) -> Callable[..., Any]:
    @wraps(method)
    def timed(*args: Any) -> Iterator[None]:
        step = _timed(partial(next, method(*args), END), seen)
        while step() is not END:
            yield

    return timed
