"""Runs on several workers whose processes die, stop, or are cut off.

kill: a random worker is killed with SIGKILL at a random instant of the run, including its start
stop: the same with SIGSTOP, so that the worker exists but is silent
driver: the driver is killed with SIGKILL; its workers must soon be gone, and the same command resumes
resize: a run is interrupted and resumes with a different number of workers, or in the driver's process alone
scheduler: the workers belong to a Dask cluster that was already running, and one of them is killed
cut: one worker of such a cluster is in a network namespace, and its link goes down, forever or for a while

Each run must end without intervention, with the undisturbed run's fingerprint (`resize`: AUC) and an intact table.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.common import arguments, finish, machine
from benchmarks.crash.job import Tally, guarded
from benchmarks.worker_kills.network import CUTS, cut, no_namespaces, scheduler_kill
from benchmarks.worker_kills.run import Ended, Job, Run, chunks, until, verified

GONE_SECONDS = 10.0
"""Time within which a worker must be gone after its driver's death."""
AUC_APART = 0.005
RESIZES = ((4, 2), (4, 3), (2, 1))


def moment(run: Run, undisturbed: Ended) -> str:
    """Wait for a random instant of a run, one in five before all workers are open. Returns its description."""
    training = undisturbed.result["seconds"]
    if random.random() < 0.2:
        seconds, after = random.uniform(0, undisturbed.seconds - training), "the start"
    else:
        seconds, after = random.uniform(0, training), "all was open"
        run.says("dashboard:")
    time.sleep(seconds)
    return f"{seconds:.1f} s after {after}"


def worker_dies(job: Job, undisturbed: Ended, number: signal.Signals) -> Callable[[Path], str]:
    """Make a trial in which one worker is sent a signal."""

    def trial(run_dir: Path) -> str:
        with job.start(run_dir) as run:
            at = moment(run, undisturbed)
            until("no worker came", lambda: bool(run.workers()) or run.process.poll() is not None)
            if not (victims := run.workers()):
                run.process.wait()
                return trial(run_dir.with_name(f"{run_dir.name}-again"))
            random.choice(victims).send_signal(number)
            sent = time.perf_counter()
            ended = run.end()
        seconds, restarts = time.perf_counter() - sent, ended.said.count("restart from the last commit")
        print(f"  {number.name} {at}: restarted {restarts} times, ended after {seconds:.0f} s more", flush=True)
        wrong = ended.differs(undisturbed)
        return f"{number.name} {at}: {wrong}" if wrong else verified(run_dir)

    return trial


def driver_dies(job: Job, undisturbed: Ended) -> Callable[[Path], str]:
    """Make a trial in which the driver is killed, and the same command resumes."""

    def trial(run_dir: Path) -> str:
        with job.start(run_dir) as run:
            at = moment(run, undisturbed)
            if not (workers := run.workers()):
                run.process.wait()
                return trial(run_dir.with_name(f"{run_dir.name}-again"))
            run.process.kill()
            run.process.wait()
            gone = until("workers outlive their driver", lambda: not any(map(_lives, workers)), GONE_SECONDS)
        with job.start(run_dir) as again:
            ended = again.end()
        goes_on = "resumes from there" in ended.said
        print(f"  driver {at}: {len(workers)} workers gone after {gone:.1f} s, a commit stood: {goes_on}", flush=True)
        wrong = ended.differs(undisturbed)
        return f"driver killed {at}: {wrong}" if wrong else verified(run_dir)

    return trial


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def resizes(job: Job, auc: float, before: int, after: int) -> Callable[[Path], str]:
    """Make a trial in which the run is interrupted in the second epoch and resumes with a different number of
    workers."""

    def trial(run_dir: Path) -> str:
        with job.start(run_dir, before) as run:
            run.says("epoch 1 validation")
            run.process.send_signal(signal.SIGINT)
            stopped = run.end()
        if stopped.code != 130 or stopped.result:
            return f"interrupted: rc {stopped.code}, {stopped.last_words}"
        wrong, were = verified(run_dir), chunks(run_dir)
        with job.start(run_dir, after) as again:
            again.says("dashboard:")
            # Taken here because the second epoch later moves every row, and old chunks are deleted.
            opened = chunks(run_dir)
            ended = again.end()
        if ended.code:
            return f"rc {ended.code}: {ended.last_words}"
        found = [*opened.items(), *chunks(run_dir).items()]
        rewritten = [path for path, at in found if were.get(path, at) != at]
        kept = sum(path in were for path in opened)
        print(
            f"  {before} -> {after}: AUC {ended.result['auc']:.5f} ({auc:.5f}), {kept} of {len(were)} files kept",
            flush=True,
        )
        if abs(ended.result["auc"] - auc) > AUC_APART:
            wrong += f" AUC {ended.result['auc']:.5f} instead of {auc:.5f}"
        return wrong + verified(run_dir) + (f" rewritten: {rewritten}" if rewritten else "")

    return trial


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--drivers", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="lines of the table; by default all")


def trials(args: argparse.Namespace, job: Job, undisturbed: Ended) -> dict[str, list[Callable[[Path], str]]]:
    """Trials of each line of the table, made one after another."""
    kill = worker_dies(job, undisturbed, signal.SIGKILL)
    if args.quick:
        return {"kill": [kill]}
    auc = undisturbed.result["auc"]
    every = {
        "kill": [kill] * args.kills,
        "stop": [worker_dies(job, undisturbed, signal.SIGSTOP)] * args.stops,
        "driver": [driver_dies(job, undisturbed)] * args.drivers,
        "resize": [resizes(job, auc, before, after) for before, after in RESIZES],
        "scheduler": [scheduler_kill(job)],
        "cut": [cut(job, seconds) for seconds in CUTS],
    }
    chosen = {kind: tried for kind, tried in every.items() if not args.only or kind in args.only}
    if "cut" in chosen and (why := no_namespaces()):
        print(f"cut is left out: {why}")
        del chosen["cut"]
    return chosen


def main() -> int:
    """Return the exit code: 1 if anything failed."""
    args = arguments("worker_kills", __doc__ or "", options)
    random.seed(args.seed)
    print(machine())
    job, begin = Job(args.data / "kills", 2 if args.quick else args.workers), time.perf_counter()
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as name:
        undisturbed = job.undisturbed(Path(name) / "undisturbed")
        print(f"undisturbed: {undisturbed.seconds:.0f} s, {undisturbed.result['fingerprint']}", flush=True)
        for kind, tried in trials(args, job, undisturbed).items():
            tallies[kind] = tally = Tally(len(tried))
            for n, trial in enumerate(tried):
                run_dir = Path(name) / f"{kind}-{n}"
                tally.add(f"{kind} {n}", guarded(lambda run_dir=run_dir, trial=trial: trial(run_dir)))
    print(f"{'':10} {'runs':>6} {'failures':>9}")
    for kind, tally in tallies.items():
        print(f"{kind:10} {tally.runs:6,} {len(tally.failures):9,}")
    failures = sum(len(tally.failures) for tally in tallies.values())
    counts = {kind: float(tally.runs) for kind, tally in tallies.items()}
    finish(args, counts | {"failures": float(failures), "seconds": time.perf_counter() - begin})
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
