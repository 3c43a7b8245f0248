"""Measured times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TIMED_CALLS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a stage's work on an otherwise idle machine."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of all threads."""

    def __mul__(self, number: float) -> Cost:
        return Cost(self.seconds * number, self.cpu_seconds * number)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


def fastest(work: Callable[[], object]) -> float:
    """CPU seconds of this thread in the fastest of TIMED_CALLS calls, since other load can only slow a call down. A
    first call, not timed, warms up."""
    work()
    seconds = []
    for _ in range(TIMED_CALLS):
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    return max(min(seconds), 1e-9)
