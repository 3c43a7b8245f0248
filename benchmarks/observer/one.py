"""A run in a separate process that reports the cost of watching it.

`python -m benchmarks.observer.one off|on ARGUMENTS` takes the arguments of `pipeline run`. "off": nothing is written to
live.jsonl. The last line is JSON with the CPU seconds of the thread that serves Dask and the page.
"""

from __future__ import annotations

import json
import os
import sys
from threading import Event, Thread, enumerate

from pipeline.driver import driver
from pipeline.monitor.observer import Observer
from pipeline.run import main

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
LOOP = "IO loop"
"""Name of Dask's thread."""


class Silent(Observer):
    ended = None


class LoopSeconds:
    """CPU seconds of Dask's threads, sampled once a second."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._over = Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            for thread in enumerate():
                if thread.name.startswith(LOOP) and thread.native_id:
                    self._seconds[thread.native_id] = self._of(thread.native_id)

    def _of(self, thread: int) -> float:
        try:
            with open(f"/proc/self/task/{thread}/stat") as file:
                user, system = file.read().rpartition(")")[2].split()[11:13]
        except OSError:
            return self._seconds.get(thread, 0.0)
        return (int(user) + int(system)) / TICKS_A_SECOND

    def close(self) -> float:
        self._over.set()
        self._thread.join()
        return sum(self._seconds.values())


if __name__ == "__main__":
    mode, *arguments = sys.argv[1:]
    if mode == "off":
        driver.live_observer = lambda *_: Silent()  # type: ignore[assignment, return-value]

    loop = LoopSeconds()
    code = main(arguments)
    print(json.dumps({"loop_seconds": loop.close()}))
    sys.exit(code)
