"""`pipeline serve` in a separate process: its core, its counters, its memory."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Context in which this thread, and the processes that it starts, run on one core: `core` 0 or 1 of the cores
    available to the process."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(every)[core % len(every)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


class Server:
    """A server on core 1. Also a context manager, which ends it."""

    def __init__(self, folder: Path, memory_bytes: int, *arguments: str) -> None:
        argv = ["serve", str(folder), "--port", "0", "--memory", f"{memory_bytes} B", *arguments]
        with on_core(1):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", *argv], stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if "http://" not in line:
            self._process.kill()
            raise SystemExit(f"the server did not start: {line.strip()}")
        host, port = line.split("http://")[1].strip().split(":")
        self.address = host, int(port)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        if self._process.stdout:
            self._process.stdout.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def memory(self, what: str) -> int:
        """Bytes of `RssAnon` or `VmRSS`."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)
        assert found
        return int(found[1]) << 10

    def counter(self, name: str) -> float:
        """Sum of a metric over its labels."""
        connection = http.client.HTTPConnection(*self.address)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(float(n) for n in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def keys(self) -> tuple[float, float]:
        """Keys whose page was in the cache, and others."""
        hit, missed = (self.counter(f"pipeline_servable_keys_{name}_total") for name in ("hit", "missed"))
        return hit, missed
