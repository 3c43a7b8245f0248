"""A command in its own process, with the peak memory of its processes.

`python -m benchmarks.planner.one WORKFLOW ARGUMENTS...` trains as `pipeline run` does, and prints one line of JSON: the
largest sum at any time of the peaks of this process and of those that it started.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from pipeline.run import main

PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def children_of(process: int | str) -> list[str]:
    """Processes that a process started, and those that these started."""
    found: list[str] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found += [child, *children_of(child)]
    return found


class Peaks:
    """Peaks of memory in bytes of all processes that are there, looked at every tenth of a second. Those of a compiler,
    which come one after another, never count together."""

    def __init__(self) -> None:
        self._most = 0
        self._over = Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self._look()

    def _look(self) -> None:
        total = 0
        for process in ("self", *children_of("self")):
            with suppress(OSError):
                if found := PEAK.search(Path(f"/proc/{process}/status").read_text()):
                    total += 1024 * int(found[1])
        self._most = max(self._most, total)

    def close(self) -> int:
        """Stop looking; returns the largest sum."""
        self._over.set()
        self._thread.join()
        self._look()
        return self._most


if __name__ == "__main__":
    peaks = Peaks()
    code = main(sys.argv[1:])
    print(json.dumps({"code": code, "peak_bytes": peaks.close()}))
