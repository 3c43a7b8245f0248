"""Trials with a death: after every call of a journaled run, as for a killed process and for a machine that loses power;
and child processes that are really killed. Each time the run resumes and must reach the same result."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from benchmarks.crash.faults import Call, Journal
from benchmarks.crash.job import Job, Outcome, Tally, differences, guarded
from benchmarks.crash.volume import State, Volume, lay_out, take_in

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["benchmarks.crash.job"])
DEATHS_A_RUN = 4
NAMES_CHANGE = 6
"""Factor for the number of torn states after a call that renames or deletes."""


@dataclass(frozen=True)
class Journaled:
    """An undisturbed run: its outcome, every call that it made, and its final files."""

    job: Job
    expected: Outcome
    calls: list[Call]
    left: State


def journaled(job: Job) -> Journaled:
    with tempfile.TemporaryDirectory() as name:
        run_dir = Path(name)
        journal = Journal(run_dir)
        expected, left = job.run(run_dir, journal), take_in(run_dir)
    volume = Volume()
    for call in journal.calls:
        volume.apply(call)
    assert volume.as_is() == left, "something reached the disk, but not through `Files.system`"
    return Journaled(job, expected, journal.calls, left)


@dataclass(frozen=True)
class Resumption:
    """Trial that resumes from a state of the run directory."""

    label: str
    job: Job
    state: State
    expected: Outcome

    def run(self) -> str:
        with tempfile.TemporaryDirectory() as run_dir:
            lay_out(self.state, Path(run_dir))
            return self.job.finish(Path(run_dir), self.expected)


def states(begin: State, calls: Sequence[Call], numbers: Iterable[int], torn: int) -> Iterator[tuple[str, State]]:
    """States that the next run may find if this one ends after the calls with these numbers (-1: before the first one)
    or in the middle of one: the state after a kill, and `torn` of the many states after a power failure (more for some
    calls)."""
    volume, wanted = Volume(begin), set(numbers)
    for number in range(-1, len(calls)):
        call = calls[number] if number >= 0 else None
        if call and number in wanted and call.kind == "write":
            yield f"killed in call {number} ({call})", volume.as_is(half=call)
        if call:
            volume.apply(call)
        if number in wanted:
            where = f"after call {number} ({call or 'none'})"
            yield f"killed {where}", volume.as_is()
            # Torn states around name changes determine which files exist to be opened, so more of them are tried.
            for n in range(torn * (NAMES_CHANGE if call and call.kind in ("rename", "unlink") else 1)):
                yield f"power lost {where}, state {n}", volume.power_loss(np.random.default_rng((number + 1, n)))


def second_deaths(undisturbed: Journaled, num: int, rng: np.random.Generator) -> Iterator[tuple[str, State]]:
    """States after the run lost power, resumed, and died again: while it was opened, or at a later call."""
    numbers = rng.choice(len(undisturbed.calls), num, replace=False).tolist()
    firsts = [first for first in states({}, undisturbed.calls, numbers, 1) if first[0].startswith("power")]
    for label, state in firsts:
        with tempfile.TemporaryDirectory() as name:
            run_dir = Path(name)
            lay_out(state, run_dir)
            journal = Journal(run_dir)
            driver = undisturbed.job.open(run_dir, journal)
            opened = len(journal.calls)
            driver.run()
        seconds = [int(rng.integers(opened)), int(rng.integers(opened)), int(rng.integers(len(journal.calls)))]
        for second, found in states(state, journal.calls, seconds, 1):
            yield f"{label}, then {second}", found


def resumptions(undisturbed: Journaled, found: Iterable[tuple[str, State]]) -> tuple[list[Resumption], int]:
    """Trials of these states without duplicates, and the number of states with duplicates."""
    different: dict[int, Resumption] = {}
    points = 0
    for label, state in found:
        points += 1
        # The hash of content shared by several states is computed once; 64-bit hashes do not collide by chance.
        different.setdefault(
            hash(frozenset(state.items())), Resumption(label, undisturbed.job, state, undisturbed.expected)
        )
    return list(different.values()), points


def child(job: Job, run_dir: Path, begins: Event) -> None:
    """Run the job in a separate process with every fsync. Sets `begins` when it begins, after a warm-up."""
    with tempfile.TemporaryDirectory() as warm:
        job.run(Path(warm))
    begins.set()
    job.run(run_dir, os)


def kill_children(undisturbed: Journaled, num: int, rng: np.random.Generator) -> Tally:
    """Kill child processes at random instants. Each resumes where the previous one was killed; the last one runs to its
    end."""
    job, tally = undisturbed.job, Tally(0)
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        wrong = differences(job.run(Path(name), os), undisturbed.expected)
        seconds = time.perf_counter() - start
        tally.add("with fsync", wrong)
    while tally.points < num:
        with tempfile.TemporaryDirectory() as name:
            run_dir, killed = Path(name) / "run", 0
            while killed < min(DEATHS_A_RUN, num - tally.points):
                if not _kill_one(job, run_dir, float(rng.uniform(0, seconds))):
                    break
                killed += 1
            tally.points += killed
            tally.add(f"{killed} kills", guarded(lambda at=run_dir: job.finish(at, undisturbed.expected)))
    return tally


def _kill_one(job: Job, run_dir: Path, after: float) -> bool:
    """Kill a child after `after` seconds; return True if it had not finished by then."""
    begins = CONTEXT.Event()
    process = CONTEXT.Process(target=child, args=(job, run_dir, begins))
    process.start()
    if not begins.wait(120):
        raise RuntimeError("a child did not begin within 120 s")
    time.sleep(after)
    process.kill()
    process.join()
    return process.exitcode != 0
