"""Trials without a death: system calls that fail or write less than requested, and flipped bits in a finished run. The
run must either reach the right result, or end with an error that says what happened, without losing anything
committed."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.crash.faults import SHORT, SHORT_THEN_FULL, Call, Fault, Faulty
from benchmarks.crash.job import Job, Outcome, differences, outcome, quiet_verify
from benchmarks.crash.points import Journaled
from benchmarks.crash.volume import State, lay_out
from pipeline.commits.manifest import Commits
from pipeline.errors import PipelineError
from pipeline.storage.files import Files

ERRNOS = (errno.ENOSPC, errno.EIO, errno.EINTR)
SHORT_ONES = (SHORT, SHORT_THEN_FULL)


@dataclass(frozen=True)
class FaultTrial:
    """Trial in which one system call of the undisturbed run fails."""

    job: Job
    number: int
    call: Call
    fault: Fault
    expected: Outcome

    @property
    def label(self) -> str:
        fault = self.fault if isinstance(self.fault, str) else errno.errorcode[self.fault]
        return f"{fault} at call {self.number} ({self.call}) in {self.call.site}"

    def run(self) -> str:
        """Description of what is wrong with the end of the run or with the resumed run; empty if nothing is."""
        with tempfile.TemporaryDirectory() as name:
            return self._run(Path(name) / "run")

    def _run(self, run_dir: Path) -> str:
        system = Faulty(run_dir, self.number, self.fault)
        try:
            result = self.job.open(run_dir, system).run()
        except (OSError, PipelineError) as error:
            wrong = self._wrong_text(str(error)) or self._wrong_state(run_dir, str(error))
        else:
            wrong = differences(outcome(result or {}, run_dir), self.expected)
            if self.fault not in (SHORT, errno.EINTR):
                wrong = wrong or "the run went on as if nothing had happened"
        if self.call.kind == "fsync" and isinstance(self.fault, int) and self.call.path in system.later_syncs:
            wrong = wrong or "the fsync that failed was repeated"
        return wrong or self.job.finish(run_dir, self.expected)

    def _wrong_text(self, text: str) -> str:
        code = self.fault if isinstance(self.fault, int) else errno.ENOSPC
        missing = [part for part in (os.strerror(code), Path(self.call.path).name) if part not in text]
        return f"the error does not say {missing}: {text}" if missing else ""

    def _wrong_state(self, run_dir: Path, text: str) -> str:
        commits = Commits(run_dir, Files(), keep=1)
        newest = next(reversed(commits.kept()), None)
        if newest and (said := quiet_verify(run_dir))[0]:
            return f"the last commit is not intact: {said[1]}"
        named = re.search(r"commit (\d+) (is kept|holds)", text)
        # A commit whose name may not be durable is visible but not guaranteed to survive.
        sure = newest and newest.number - (self.call.kind != "rename" and "sync_folder" in self.call.site)
        if named and (newest is None or not sure <= int(named[1]) <= newest.number):
            return f"the newest commit is {newest and newest.number}, and the error says {text}"
        if named and newest and int(named[1]) == newest.number:
            at = newest.state["position"]
            where = f"epoch {at['epoch'] + 1}, {at['split']}, batch {at['batch']}"
            return "" if where in text or "holds all of the training" in text else f"the commit is at {where}: {text}"
        return ""


def fault_trials(undisturbed: Journaled, numbers: Sequence[int], rng: np.random.Generator) -> list[FaultTrial]:
    """Faults for every call site (a chain of functions) among the calls with these numbers: each fault that the site
    can have, at its first or another call."""
    calls, sites = undisturbed.calls, dict[tuple[str, str], list[int]]()
    for number in numbers:
        sites.setdefault((calls[number].kind, calls[number].site), []).append(number)
    return [
        FaultTrial(undisturbed.job, number, calls[number], fault, undisturbed.expected)
        for at in sites.values()
        for fault in ERRNOS + (SHORT_ONES if calls[at[0]].kind == "write" else ())
        for number in sorted({at[0], int(rng.choice(at))})
    ]


@dataclass(frozen=True)
class FlipTrial:
    """Trial in which one bit of a finished run is flipped."""

    job: Job
    """Job with one more epoch than the run had."""
    left: State
    path: str
    bit: int
    expected: Outcome

    @property
    def label(self) -> str:
        return f"bit {self.bit} of {self.path}"

    def run(self) -> str:
        """Description of a failure: `verify` misses the flip, or resuming the run gives neither an error nor the right
        result. Empty if there is no failure."""
        content = bytearray(self.left[self.path] or b"")
        content[self.bit // 8] ^= 1 << self.bit % 8
        with tempfile.TemporaryDirectory() as name:
            run_dir = Path(name)
            lay_out(self.left | {self.path: bytes(content)}, run_dir)
            code, said = quiet_verify(run_dir)
            if code != 1 or self.path not in said:
                return f"verify: {code}, {said}"
            try:
                return differences(self.job.run(run_dir), self.expected)
            except (OSError, ValueError, PipelineError):
                return ""


def flip_trials(undisturbed: Journaled, num: int, rng: np.random.Generator) -> list[FlipTrial]:
    """Flips of random bits in the log and the commits: half of them uniform over all bytes, half over all files."""
    left = undisturbed.left
    job = replace(undisturbed.job, epochs=undisturbed.job.epochs + 1)
    with tempfile.TemporaryDirectory() as name:
        lay_out(left, Path(name))
        expected = job.run(Path(name))
    sizes = {p: len(c) for p, c in left.items() if c and p.startswith(("commits/", "table.zarr/"))}
    paths, weights = list(sizes), np.array(list(sizes.values())) / sum(sizes.values())
    chosen = [paths[rng.choice(len(paths), p=weights if n % 2 else None)] for n in range(num)]
    return [FlipTrial(job, left, path, int(rng.integers(8 * sizes[path])), expected) for path in chosen]
