"""The small training job that is killed, and the check of its result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from benchmarks.crash.faults import Unsynced
from pipeline.commits.inspect import read_manifests, unnamed
from pipeline.commits.manifest import Commits, Manifest
from pipeline.data.source import Source
from pipeline.data.synthetic import ensure
from pipeline.device.device import RAM
from pipeline.driver.driver import Driver
from pipeline.driver.open import local_crew, make_run_dir
from pipeline.models import DeepFM
from pipeline.monitor.progress import Progress
from pipeline.preflight.check_model import check_model
from pipeline.preflight.setup import Setup, agenda_of
from pipeline.preflight.sizes import Fit, Sizes
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files, checksum_of
from pipeline.storage.folder import Folder
from pipeline.training.build import row_layout
from pipeline.verify import verify
from pipeline.workflow import (
    Category,
    Commit,
    Data,
    Model,
    Number,
    Schedule,
    Storage,
    Synthetic,
    Workers,
    Workflow,
)

SPEED = DiskSpeed(seconds_per_read=6e-6, bytes_per_second=1e9)
ROWS = {"device_rows": 85, "outgoing_rows": 600, "host_rows": 16, "staging_rows": 600, "chunk_rows": 32}
"""Sizes so small that rows go through all tiers; a chunk is two pages long."""
KEYS = (50, 50, 40, 30, 20)
MAX_SHOWN = 20
"""Maximum number of failures printed for one kind of trial."""
Outcome = dict[str, Any]
"""Results that must not depend on how often the run was interrupted."""


def make_workflow(data: Path, epochs: int, shards: int = 1) -> Workflow:
    planted = Synthetic(
        train_examples=90, validation_examples=24, test_examples=12, keys_per_field=KEYS, num_numbers=2, zipf=0.6
    )
    return Workflow(
        name="crash",
        data=Data(
            root=data,
            train=("train",),
            validation=("validation",),
            test=("test",),
            labels=("label",),
            numbers=tuple(Number(name=f"i{x}") for x in range(planted.num_numbers)),
            categories=tuple(Category(name=f"c{f}") for f in range(len(KEYS))),
            shuffle_window=32,
            synthetic=planted,
        ),
        model=Model(kind=DeepFM, embedding_dim=16, args={"hidden": (8,)}),
        optimizer=Optimizer(rows=Adam(lr=0.05), dense=DenseAdam(lr=0.01)),
        storage=Storage(device="16 MiB", host="16 MiB", disk="1 GiB", read="64 MiB", map="64 MiB", chunk_rows=1024),
        schedule=Schedule(batch_size=6, epochs=epochs, block_batches=2, threads=1),
        commit=Commit(every_blocks=3, every_minutes=None),
        workers=Workers(shards=shards),
    )


@dataclass(frozen=True)
class Job:
    """A run of about 800 system calls by the serial executor, with three commits per epoch."""

    data: Path
    """Folder in which its synthetic data is made once."""
    epochs: int = 2
    shards: int = 1

    def open(self, run_dir: Path, system: Any) -> Driver:
        """Open a driver that resumes from the state in the directory and uses the disk only through `system`."""
        workflow = make_workflow(self.data, self.epochs, self.shards)
        ensure(workflow.data)
        make_run_dir(run_dir, fresh=False)
        source = Source(workflow.data, workflow.seed)
        sizes = Sizes(
            row_bytes=row_layout(workflow).num_bytes,
            disk_chunks=1 << 20,
            read_ring_bytes=workflow.storage.read,
            window_bytes=1 << 20,
            map_bytes=1 << 24,
            **ROWS,
        )
        fit = Fit(sizes, workflow.schedule.look_ahead, workflow.schedule.block_batches)
        row = row_layout(workflow)
        agenda = agenda_of(workflow, source.num_examples, check_model(workflow, row))
        setup = Setup(workflow, 1, workflow.storage, row, agenda, fit)
        files = Files()
        files.system = system
        progress = Progress(agenda.total_examples, stream=StringIO())
        return Driver(
            setup, source, Folder(run_dir, files, SPEED), local_crew(setup, source, RAM), progress=progress
        ).open()

    def run(self, run_dir: Path, system: Any = None) -> Outcome:
        """Run the job to its end, from the start or from a commit. Without `system`, nothing is fsynced."""
        result = self.open(run_dir, system or Unsynced()).run()
        assert result is not None
        return outcome(result, run_dir)

    def finish(self, run_dir: Path, expected: Outcome) -> str:
        """Run the job to its end, compare the outcome, and check every remaining file. Returns a description of what is
        wrong; empty if nothing is."""
        wrong = differences(self.run(run_dir), expected)
        if wrong:
            return wrong
        code, said = quiet_verify(run_dir)
        extra = unnamed(run_dir, *_manifests(run_dir))
        return f"verify: {code} {said} {[path.name for path in extra]}" if code or extra else ""


def _manifests(run_dir: Path) -> tuple[Commits, list[Manifest]]:
    commits = Commits(run_dir, Files(), keep=1)
    return commits, read_manifests(commits)[0]


def outcome(result: dict[str, Any], run_dir: Path) -> Outcome:
    kept = {name: result[name] for name in ("fingerprint", "rows", "examples", "epochs")}
    files = {name: checksum_of(run_dir / name) for name in ("model.safetensors", "metrics.jsonl")}
    commits = [(m.number, m.name) for m in _manifests(run_dir)[1]]
    left = json.loads((run_dir / "result.json").read_text())["fingerprint"]
    return kept | files | {"commits": commits, "result.json": left}


@dataclass
class Tally:
    """Results of one kind of trial."""

    points: int = 0
    runs: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, label: str, failure: str) -> None:
        self.runs += 1
        if failure:
            self.failures.append(f"{label}: {failure}")
            if len(self.failures) <= MAX_SHOWN:
                print(f"FAILED {self.failures[-1]}", flush=True)


class Trial(Protocol):
    """One trial. It consists of plain values, so that it can be sent to other processes."""

    @property
    def label(self) -> str: ...

    def run(self) -> str:
        """Run the trial. Returns a description of what is wrong; empty if nothing is."""
        ...


Map = Callable[[Callable[[Any], str], Sequence[Any]], Iterator[str]]
"""The builtin `map`, or that of a pool of processes."""


def run_trial(trial: Trial) -> str:
    """Run a trial. An exception also counts as a failure."""
    return guarded(trial.run)


def try_all(trials: Sequence[Trial], run: Map, points: int = 0) -> Tally:
    """Run all trials. `points`: number of cases that the trials represent, if larger than their number."""
    tally, start = Tally(points or len(trials)), time.perf_counter()
    for trial, failure in zip(trials, run(run_trial, trials), strict=True):
        tally.add(trial.label, failure)
        if tally.runs % 250 == 0:
            print(f"  {tally.runs} of {len(trials)}, {time.perf_counter() - start:.0f} s", flush=True)
    return tally


def guarded(attempt: Callable[[], str]) -> str:
    """Return what the attempt found wrong. An exception also counts as a failure."""
    try:
        return attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def differences(found: Outcome, expected: Outcome) -> str:
    return "; ".join(f"{k} is {found[k]}, not {expected[k]}" for k in expected if found[k] != expected[k])


def quiet_verify(run_dir: Path) -> tuple[int, str]:
    """Exit code and text of `pipeline.verify`."""
    with redirect_stdout(StringIO()) as said, redirect_stderr(said):
        code = verify(run_dir)
    return code, said.getvalue()
