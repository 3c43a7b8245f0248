"""Long benchmarks in parts that survive an interruption: each run is made once, and a JSON file stores its result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

from pipeline.cluster.local import local_client
from pipeline.device.gpu import choose
from pipeline.driver.driver import Driver
from pipeline.driver.open import folder_of, local_crew, make_run_dir
from pipeline.machine.process import keep_freed_memory
from pipeline.monitor.history import json_value
from pipeline.monitor.progress import Progress
from pipeline.preflight.setup import set_up
from pipeline.storage.lock import InUse, RunLock
from pipeline.storage.reader import allow_many_files
from pipeline.workflow import Workflow

Json = dict[str, Any]


def once(path: Path, work: Callable[[], Json]) -> None:
    """Write the result of `work` to `path`, unless the file exists or another process is making it."""
    if path.exists():
        return
    try:
        lock = RunLock(path)
    except InUse:
        return
    with lock:
        # Another process may have finished it in the meantime.
        if not path.exists():
            print(f"{path.stem} ...", flush=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(json_value(work()), indent=1) + "\n")
            os.replace(partial, path)
        # Another process may have found the result and removed the lock file before.
        lock.path.unlink(missing_ok=True)


def read(path: Path) -> Json | None:
    """Read what `once` wrote; None if it does not exist."""
    return json.loads(path.read_text()) if path.exists() else None


class Quiet(Progress):
    """Progress that shows nothing. It records the loss of every block, and the time at each number of examples."""

    def __init__(self) -> None:
        super().__init__(1, StringIO())
        self.losses: list[float] = []
        self.seconds_at: dict[int, float] = {}

    def begin_at(self, examples_done: int) -> None:
        super().begin_at(examples_done)
        self.seconds_at[examples_done] = self._clock()

    def update(self, examples_done: int, loss: float) -> None:
        self.losses.append(loss)
        self.seconds_at[examples_done] = self._clock()

    def seconds(self, first: int, end: int) -> float | None:
        """Seconds in which the run went from `first` to `end` examples; None if either moment was not observed."""
        stamps = [self.seconds_at.get(at) for at in (first, end)]
        return None if None in stamps else stamps[1] - stamps[0]


def train(workflow: Workflow, run_dir: Path, progress: Progress, serial: bool = False, keep: bool = False) -> Json:
    """Run the workflow from where an earlier process stopped, and return its result. The run directory is removed
    afterwards unless `keep`."""
    device = choose(workflow.device)
    setup, source = set_up(workflow, device, print)
    with RunLock(run_dir) as lock:
        make_run_dir(run_dir, fresh=False)
        keep_freed_memory()
        allow_many_files()
        with nullcontext() if serial else local_client() as client:
            crew = local_crew(setup, source, device, client)
            driver = Driver(setup, source, folder_of(setup, run_dir), crew, device.model, progress)
            result = driver.open().run()
        if result is None:
            raise SystemExit("stopped at a commit; the same command resumes from there")
        if not keep:
            shutil.rmtree(run_dir)
        lock.path.unlink()
    return result
