"""Stopping by signal: the first asks the run to end at a commit, the second ends it now."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signal(stop: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` with the signal's name at the first SIGINT or SIGTERM; the next one has its usual effect, at once.

    Does nothing outside the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def first(number: int, frame: Any) -> None:
        for each in SIGNALS:
            signal.signal(each, second)
        stop(signal.Signals(number).name)

    def second(number: int, frame: Any) -> None:
        # Commits are safe at any instruction, so nothing has to be tidied up.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in SIGNALS:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
