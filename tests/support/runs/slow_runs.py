"""Runs of a small workflow in separate processes, made slow enough to be paused and killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from conftest import make_workflow, write_data
from support.runs.crew_threads import ONE, make_crew_driver

ROOT = Path(__file__).parents[3]
ENDS_SECONDS = 400.0
"""Time limit in seconds for a run to end by itself."""
EPOCHS = 6

WORKFLOW = '''
import os
import time
from pathlib import Path

from pipeline.driver.committer import Committer
from pipeline.models import DeepFM
from pipeline.workflow import Workflow


class Slow(DeepFM):
    def forward(self, *args):
        time.sleep(float(os.environ.get("SLOW", "0")))
        return super().forward(*args)


commit = Committer.commit


def told(self, *args, **options):
    """A file is there while a commit is."""
    committing = Path(__file__).with_name("committing")
    committing.touch()
    try:
        return commit(self, *args, **options)
    finally:
        committing.unlink()


Committer.commit = told
workflow = Workflow.model_validate_json({text!r})
'''


class Job:
    """A workflow in its own folder."""

    def __init__(self, folder: Path, **workers: Any) -> None:
        workflow = make_workflow(write_data(folder / "data", num_train=90, num_keys=60), block_batches=1, epochs=EPOCHS)
        self._workflow = workflow.model_copy(update={"workers": workflow.workers.model_copy(update=workers)})
        kind = f"{workflow.model.kind.__module__}.{workflow.model.kind.__qualname__}"
        text = self._workflow.model_dump_json().replace(kind, "workflow_slow.Slow")
        assert "workflow_slow" in text
        self.folder, self.file = folder, folder / "slow.py"
        self.file.write_text(WORKFLOW.format(text=text))

    def start(self, run_dir: Path, *flags: str, slow: float = 0.04, env: dict[str, str] | None = None) -> Run:
        return Run(self.file, run_dir, flags, {"SLOW": str(slow), **(env or {})})

    def undisturbed(self, *flags: str) -> str:
        """Fingerprint of an undisturbed run of so many workers, in this process: two in others take a minute."""
        world = int(flags[1]) if flags else ONE
        with tempfile.TemporaryDirectory() as run_dir:
            result = make_crew_driver(self._workflow, Path(run_dir), world).run()
        assert result
        return str(result["fingerprint"])


class Run:
    """A process of `pipeline.run` and its children. Leaves no process behind."""

    def __init__(self, file: Path, run_dir: Path, flags: tuple[str, ...], env: dict[str, str]) -> None:
        self.run_dir, self._log = run_dir, run_dir.with_suffix(f".{time.time_ns()}.log")
        command = [sys.executable, "-m", "pipeline.run", str(file), "--run-dir", str(run_dir), *flags]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | env, stdout=log, stderr=subprocess.STDOUT
            )
        self._seen: set[psutil.Process] = set()

    @property
    def said(self) -> str:
        return self._log.read_text()

    def workers(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            below = psutil.Process(self.process.pid).children(recursive=True)
            found = [process for process in below if "spawn_main" in " ".join(process.cmdline())]
            self._seen.update(found)
            return found
        return []

    def ended(self) -> bool:
        return self.process.poll() is not None

    def says(self, text: str) -> None:
        """Wait until the run has printed the text. The run may have ended by then."""
        until(f"it did not say {text!r}", lambda: text in self.said or self.ended(), self)

    def end(self) -> int:
        """Wait for the end, and return the exit code. Raises AssertionError if the run hangs or prints a traceback."""
        until("the run did not end", self.ended, self)
        before, traceback, after = self.said.partition("Traceback")
        assert not traceback, f"{before[-1500:]}Traceback{after[:6000]}"
        return self.process.returncode

    def fingerprint(self) -> str:
        assert self.end() == 0, self.said[-3000:]
        return str(json.loads((self.run_dir / "result.json").read_bytes())["fingerprint"])

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.workers()
        self.process.kill()
        self.process.wait()
        for worker in self._seen:
            with suppress(psutil.Error):
                worker.kill()


def until(what: str, is_so: Callable[[], bool], run: Run | None = None, seconds: float = ENDS_SECONDS) -> None:
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < seconds, f"{what} in {seconds:.0f} s: {run.said[-3000:] if run else ''}"
        time.sleep(0.01)


def listening(process: psutil.Process) -> set[str]:
    """Addresses that a process and its children listen on, according to the system."""
    found = set()
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            found |= {at.laddr.ip for at in one.net_connections("inet") if at.laddr and not at.raddr}
    return found


def whole(run_dir: Path) -> None:
    """Raises AssertionError if `pipeline.verify` finds something wrong."""
    done = subprocess.run([sys.executable, "-m", "pipeline.verify", str(run_dir)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
