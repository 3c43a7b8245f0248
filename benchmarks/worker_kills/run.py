"""The run on several workers that is killed: its workflow, its processes, and its expected result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pipeline.models import DeepFM
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Commit, Data, Model, Schedule, Storage, Synthetic, Workers, Workflow

KEYS = (60_000, 20_000, 5_000, 500, 20)
SILENT_SECONDS = 8.0
ENDS_SECONDS = 400.0
"""Time within which a run ends without intervention, whatever happens to it."""

workflow = Workflow(
    name="kills",
    data=Data(
        root="data/kills",
        train=("train",),
        validation=("validation",),
        test=("test",),
        labels=("click",),
        categories=tuple(Category(name=f"c{n}") for n in range(len(KEYS))),
        synthetic=Synthetic(
            train_examples=120_000, validation_examples=40_000, test_examples=40_000, keys_per_field=KEYS, zipf=1.1
        ),
    ),
    model=Model(kind=DeepFM, embedding_dim=8, args={"hidden": (32,)}),
    optimizer=Optimizer(rows=Adam(lr=2e-3), dense=DenseAdam(lr=1e-3)),
    storage=Storage(device="3 MiB", host="2 MiB", disk="1 GiB", read="64 MiB", map="16 MiB", chunk_rows=1024),
    schedule=Schedule(batch_size=2048, epochs=2, block_batches=4, threads=1),
    commit=Commit(every_blocks=6, every_minutes=None),
    workers=Workers(silent_seconds=SILENT_SECONDS),
    seed=1,
)


@dataclass(frozen=True)
class Ended:
    """Result of a run that ended without intervention."""

    code: int
    said: str
    seconds: float
    """Seconds since the run began."""
    result: dict[str, Any]
    """Content of result.json; empty if there is none."""

    @property
    def last_words(self) -> str:
        return self.said[-600:].strip().replace("\n", " | ")

    def differs(self, undisturbed: Ended) -> str:
        """Difference from the undisturbed run, in words; empty if there is none."""
        if self.code:
            return f"rc {self.code}: {self.last_words}"
        found, wanted = self.result["fingerprint"], undisturbed.result["fingerprint"]
        return "" if found == wanted else f"fingerprint {found} instead of {wanted}"


class Run:
    """A process of `pipeline.run` and its children."""

    def __init__(self, data: Path, run_dir: Path, *more: str, inside: Sequence[str] = ()) -> None:
        """`inside`: a command prefix that runs another command."""
        self.run_dir, self._log = run_dir, run_dir.with_suffix(".log")
        command = [*inside, sys.executable, "-m", "pipeline.run", __file__, "--run-dir", str(run_dir)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--set", f"data.root={data.absolute()}", *more], stdout=log, stderr=subprocess.STDOUT
            )
        self._begun = time.perf_counter()
        self.seen: set[psutil.Process] = set()
        """All processes of workers found so far."""

    @property
    def said(self) -> str:
        return self._log.read_text()

    def workers(self) -> list[psutil.Process]:
        """Processes of the workers, including those that are still starting."""
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
            found = [one for one in below if "spawn_main" in " ".join(one.cmdline())]
        except psutil.Error:
            return []
        self.seen.update(found)
        return found

    def says(self, text: str) -> None:
        """Wait until the run has printed the text or has ended."""
        until(f"it did not say {text!r}", lambda: text in self.said or self.process.poll() is not None)

    def end(self) -> Ended:
        """Wait for the end of the run. Raises TimeoutError if it hangs."""
        until("the run did not end", lambda: self.workers() == [] and self.process.poll() is not None)
        seconds = time.perf_counter() - self._begun
        try:
            result = dict(json.loads((self.run_dir / "result.json").read_bytes()))
        except FileNotFoundError:
            result = {}
        return Ended(self.process.returncode, self.said, seconds, result)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave no process behind."""
        self.workers()
        self.process.kill()
        self.process.wait()
        for worker in self.seen:
            if worker.is_running():
                worker.kill()


@dataclass(frozen=True)
class Job:
    data: Path
    """Folder in which its synthetic data is generated once."""
    num_workers: int

    def start(self, run_dir: Path, num_workers: int | None = None, *more: str) -> Run:
        """Start a run. With 1 worker, that is the driver itself."""
        num_workers = num_workers or self.num_workers
        return Run(self.data, run_dir, *(["--workers", str(num_workers)] if num_workers > 1 else []), *more)

    def undisturbed(self, run_dir: Path) -> Ended:
        """Run undisturbed. Raises RuntimeError if the run does not finish."""
        with self.start(run_dir) as run:
            ended = run.end()
        if ended.code:
            raise RuntimeError(f"the undisturbed run ended with {ended.code}: {ended.last_words}")
        return ended


def until(what: str, is_so: Callable[[], bool], seconds: float = ENDS_SECONDS) -> float:
    """Wait until a condition holds. Returns the seconds that it took. Raises TimeoutError if it takes too long."""
    begun = time.perf_counter()
    while not is_so():
        if time.perf_counter() - begun > seconds:
            raise TimeoutError(f"{what} within {seconds:.0f} s")
        time.sleep(0.05)
    return time.perf_counter() - begun


def verified(run_dir: Path) -> str:
    """Errors that `pipeline.verify` finds; empty if there are none."""
    done = subprocess.run([sys.executable, "-m", "pipeline.verify", str(run_dir)], capture_output=True, text=True)
    return f"verify: {done.returncode} {done.stdout[-400:]} {done.stderr[-400:]}" if done.returncode else ""


def chunks(run_dir: Path) -> dict[str, tuple[int, int, int]]:
    """All files of the log with rows: inode, bytes, and time of the last write."""
    found = {}
    for folder, _, names in os.walk(run_dir / "table.zarr"):
        for name in names:
            if not name.endswith(".json"):
                path = Path(folder) / name
                at = path.stat()
                found[str(path)] = (at.st_ino, at.st_size, at.st_mtime_ns)
    return found
