"""A command in a separate process, with the peak memory of its processes.

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
    """Processes started by a process, directly or indirectly."""
    found: list[str] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                found += [child, *children_of(child)]
    return found


class Peaks:
    """Peak memory in bytes of all existing processes, sampled every tenth of a second. Compiler processes, which run
    one after another, are never added up."""

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
        """Stop sampling. Returns the largest sum."""
        self._over.set()
        self._thread.join()
        self._look()
        return self._most


if __name__ == "__main__":
    peaks = Peaks()
    code = main(sys.argv[1:])
    print(json.dumps({"code": code, "peak_bytes": peaks.close()}))
