"""Seconds that a thread spends on named parts of its work, such as waiting for another worker.

The parts of a call are summed in the calling thread; concurrent work of other threads on its behalf counts as one part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}


_here = _OfThread()


@contextmanager
def part(name: str) -> Iterator[None]:
    """Count the seconds within this context as those of part `name`. Parts do not nest."""
    began = time.perf_counter()
    try:
        yield
    finally:
        _here.seconds[name] = _here.seconds.get(name, 0.0) + time.perf_counter() - began


def take_parts() -> tuple[tuple[str, float], ...]:
    """Return (name, seconds) of each part that this thread has counted since the last call."""
    taken = tuple(_here.seconds.items())
    _here.seconds.clear()
    return taken
