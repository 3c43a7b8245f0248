"""Runs that are killed, lose power, have a failing disk, or have damaged files.

points: the run ends before or after every system call, as after a kill (also in the middle of every write) and as after
    a power failure, where a random part of the pages and folder changes that were not fsynced survives
again: the same for runs that resume after a power failure and die a second time
kills: child processes killed with SIGKILL at random instants
faults: every call site fails with every error that it can have, or writes less than it should
flips: one random bit of a finished run's log or commits is flipped

After each death the run resumes and must end with the undisturbed run's fingerprint, metrics and files. After a fault,
the error must name the file and what happened to it. `verify` must find every flip, and no value may change without an
error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.common import arguments, finish, machine
from benchmarks.crash.damage import fault_trials, flip_trials
from benchmarks.crash.job import Job, Map, Tally, try_all
from benchmarks.crash.points import CONTEXT, Journaled, journaled, kill_children, resumptions, second_deaths, states


@dataclass(frozen=True)
class Scale:
    """Number of trials of each kind."""

    epochs: int = 2
    calls: int = 1 << 20
    """Maximum number of calls of the run to try, evenly spaced."""
    torn: int = 2
    """Number of states after a power failure, per call."""
    again: int = 80
    """Number of runs that die a second time, with three second deaths each."""
    kills: int = 40
    faults: int = 1 << 20
    """Maximum number of faults, drawn at random."""
    flips: int = 1000


QUICK = Scale(1, 8, 1, 2, 1, 12, 12)


def trials(scale: Scale, run: Journaled, map_: Map) -> dict[str, Callable[[], Tally]]:
    """Function for each line of the table."""

    def rng() -> np.random.Generator:
        return np.random.default_rng(0)

    def points() -> Tally:
        step = max(1, len(run.calls) // scale.calls)
        found, num = resumptions(run, states({}, run.calls, range(-1, len(run.calls), step), scale.torn))
        return try_all(found, map_, num)

    def again() -> Tally:
        found, num = resumptions(run, second_deaths(run, scale.again, rng()))
        return try_all(found, map_, num)

    def faults() -> Tally:
        every = fault_trials(run, range(len(run.calls)), rng())
        some = rng().permutation(len(every))[: scale.faults]
        return try_all([every[n] for n in sorted(some)], map_)

    return {
        "points": points,
        "again": again,
        "kills": lambda: kill_children(run, scale.kills, rng()),
        "faults": faults,
        "flips": lambda: try_all(flip_trials(run, scale.flips, rng()), map_),
    }


def main() -> int:
    """Return the exit code: 1 if anything failed."""
    args = arguments("crash", __doc__ or "")
    scale = QUICK if args.quick else Scale()
    print(machine())
    run = journaled(Job(args.data / "crash", scale.epochs))
    print(f"a run of {len(run.calls):,} calls to the system")
    begin, table = time.perf_counter(), dict[str, tuple[Tally, float]]()
    with ExitStack() as stack:
        map_: Map = map
        if not args.quick:
            pool = stack.enter_context(ProcessPoolExecutor(os.cpu_count(), mp_context=CONTEXT))
            map_ = partial(pool.map, chunksize=4)
        for name, take in trials(scale, run, map_).items():
            print(name, flush=True)
            start = time.perf_counter()
            table[name] = take(), time.perf_counter() - start
    print(f"{'':8} {'points':>8} {'runs':>8} {'seconds':>8} {'failures':>8}")
    for name, (tally, seconds) in table.items():
        print(f"{name:8} {tally.points:8,} {tally.runs:8,} {seconds:8.0f} {len(tally.failures):8,}")
    failures = sum(len(tally.failures) for tally, _ in table.values())
    counts = {name: float(tally.points) for name, (tally, _) in table.items()}
    finish(args, counts | {"failures": float(failures), "seconds": time.perf_counter() - begin})
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
