"""Speed of two workers that share the batch of one, on one machine, relative to one worker and to two independent runs.

Each number of workers has as many cores, and runs in separate processes; repeats are interleaved, medians reported. The
model is Criteo's shape with an MLP of 64 and all rows on the device, so the dense part is too small to matter. Figures
are of the steady state. Two concurrent runs of one worker, on one core each, show the maximum that two cores gave, and
CPU time shows what idle cores would give.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.common import arguments, finish, machine, spread

BLOCK_BATCHES = 32
"""Number of batches per block."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8_192, help="examples of a step")


def start(args: argparse.Namespace, workers: int, first: int = 0) -> subprocess.Popen[str]:
    """Start `workers.run` in a process. `first`: number of its first core."""
    block_batches = 8 if args.quick else BLOCK_BATCHES
    numbers = (workers, first, workers, args.keys, args.batches, args.batch, block_batches)
    command = [sys.executable, "-m", "benchmarks.workers.run", str(args.data), *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Result of a process. Raises CalledProcessError, after printing its output, if it failed."""
    said, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return dict(json.loads(said.splitlines()[-1]))


def independent(args: argparse.Namespace) -> float:
    """Total examples per second of two independent runs of one worker, on one core each."""
    both = [start(args, 1, first) for first in (0, 1)]
    return sum(result(process)["examples_per_s"] for process in both)


def main() -> None:
    args = arguments("workers", __doc__ or "", options)
    if args.quick:
        args.keys, args.batches, args.batch, args.repeats = 150_000, 40, 512, 1
    print(machine())
    measured: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    limits: list[float] = []
    for _ in range(args.repeats):
        for workers, runs in measured.items():
            runs.append(result(start(args, workers)))
        limits.append(independent(args))
    speeds, cpu = {}, {}
    for workers, runs in measured.items():
        rates = [one["examples_per_s"] for one in runs]
        speeds[workers] = statistics.median(rates)
        cpu[workers] = statistics.median((workers * r["worker_cpu"] + r["driver_cpu"]) / r["examples"] for r in runs)
        print(f"{workers} workers: {spread(rates)} examples/s, {1e6 * cpu[workers]:.2f} us of CPU an example")
        one = sorted(runs, key=lambda run: run["examples_per_s"])[len(runs) // 2]
        parts = ", ".join(f"{name} {1e6 * seconds / one['examples']:.3f}" for name, seconds in one["stages"].items())
        print(f"   us/example: {parts}")
    print(f"two independent runs: {spread(limits)} examples/s")
    finish(args, {
        "speed_1_on_1": speeds[1],
        "speed_2_on_2": speeds[2],
        "two_vs_one": speeds[2] / speeds[1],
        "scaling_vs_independent": speeds[2] / statistics.median(limits),
        "cpu_us_1": 1e6 * cpu[1],
        "cpu_us_2": 1e6 * cpu[2],
    })  # fmt: skip


if __name__ == "__main__":
    main()
