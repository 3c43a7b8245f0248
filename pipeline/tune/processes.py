"""Processes of a study's trainings: started together, restarted if killed, and interrupted by signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.machine.signals import on_signal
from pipeline.tune.records import Record, Verdict

POLL_SECONDS = 0.05
STARTS = 4
"""Number of starts of a training per session after which a kill counts as a failure."""
LAST_LINES = 3
"""Number of last lines of a process's output that form the text of its failure."""


class Processes:
    """Runs the trainings of a study; those of one call run concurrently."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.signal: str | None = None
        """Name of the signal that asked the study to stop; None if there was none."""

    def run(self, records: Sequence[Record], judged: Callable[[Record, Verdict], None]) -> bool:
        """Run all records without a verdict concurrently, and call `judged` for each as it gets one. Returns False if a
        signal arrives before all have one; the others have then committed and resume at the next call."""
        starts = dict.fromkeys((record.name for record in records if record.verdict() is None), 0)
        waiting = {record.name: record for record in records if record.name in starts}
        with on_signal(self._stop):
            while waiting:
                for name, record in list(waiting.items()):
                    process = self._running.get(name)
                    if process is None and not self.signal:
                        starts[name] += 1
                        self._running[name] = self.start(record)
                    elif process is None or process.poll() is not None:
                        self._running.pop(name, None)
                        if process and (verdict := self._verdict(record, process.returncode, starts[name])):
                            judged(record, verdict)
                            del waiting[name]
                        elif self.signal:
                            del waiting[name]
                time.sleep(POLL_SECONDS)
        return all(record.verdict() for record in records)

    def start(self, record: Record) -> subprocess.Popen[bytes]:
        """Start the training of a record in a process."""
        # Without -P, the process would also import from the current folder what is named like a library there.
        command = [sys.executable, "-P", "-m", "pipeline.tune.trial", str(self._out), record.name, str(os.getpid())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with open(record.output, "ab") as output:
            # In a separate process group, a process gets the terminal's signals only through the study.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment
            )

    def _verdict(self, record: Record, code: int, starts: int) -> Verdict | None:
        """Verdict of a process that has ended; None if it must be restarted."""
        if found := record.verdict():
            return found
        was_stopped = code < 0 or code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        if was_stopped and (self.signal or starts < STARTS):
            return None
        lines = record.output.read_text(errors="replace").splitlines()[-LAST_LINES:]
        text = f"it was killed {starts} times" if was_stopped else f"its process ended with code {code}"
        failed = Verdict(state="failed", text=": ".join([text, " ".join(lines)]))
        record.write(failed)
        return failed

    def _stop(self, name: str) -> None:
        self.signal = name
        os.write(2, f"\n{name}: the trials stop at a commit; a second signal stops at once\n".encode())
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
