"""Speed-up by more workers on one machine, where the time goes, and how well the scaling model predicts it.

A point is a number of workers on a number of cores, each in a separate process; repeats are interleaved, medians
reported. Two workers share the batch of one, or each has a batch of that size ("each": more workers make the batch
larger). The model is Criteo's shape with an MLP of 64 and all rows on the device, so the dense part is too small to
matter. A worker's seconds are those of its steady state: `train`, including communication (rows fetched, gradients
returned, dense gradients all-reduced, and waits for the slower worker), and CPU seconds of the worker and the driver.
If other programs also use the cores, speeds are those of a loaded machine. Two concurrent runs of one worker, on one
core each, therefore show the maximum that two cores gave, and CPU time shows what idle cores would give. `predicted` is
the scaling model's speed with the constants of the machine of 2026-11-20 and the link between workers measured here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.cases import keys_per_field
from benchmarks.common import arguments, finish, machine, spread
from benchmarks.scaling.inputs import CRITEO, MACHINE, TWO_CORES, Link, Run, Shape
from benchmarks.scaling.model import Point, check
from benchmarks.scaling.zipf import Fields
from benchmarks.workers.link import collectives, link_of


class Setup(NamedTuple):
    workers: int
    cores: int
    batches: int = 1
    """Number of examples per step, as a multiple of one worker's batch."""

    def __str__(self) -> str:
        return f"{self.workers}_on_{self.cores}" + "_each" * (self.batches > 1)


POINTS = (Setup(1, 1), Setup(2, 2), Setup(2, 2, batches=2), Setup(1, 2), Setup(4, 2))
"""Measured points. The first is the reference for the others."""
BLOCK_BATCHES = 32
"""Number of batches per block of one worker."""
Measured = dict[Setup, list[dict[str, Any]]]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--points", type=int, default=len(POINTS), help="number of points to measure, at least 2")
    parser.add_argument("--batch", type=int, default=8_192, help="examples of a step of one worker")


def run_of(args: argparse.Namespace, setup: Setup) -> Run:
    return Run(args.batch * setup.batches, (8 if args.quick else BLOCK_BATCHES) // setup.batches)


def start(args: argparse.Namespace, setup: Setup, first: int = 0) -> subprocess.Popen[str]:
    """Start `workers.run` in a process. `first`: number of its first core."""
    run, num_batches = run_of(args, setup), args.batches // setup.batches
    numbers = (setup.workers, first, setup.cores, args.keys, num_batches, run.batch, run.block_batches)
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
    both = [start(args, POINTS[0], first) for first in (0, 1)]
    return sum(result(process)["examples_per_s"] for process in both)


def print_point(point: Setup, runs: list[dict[str, Any]]) -> None:
    """Print the run with median speed, in microseconds per example over all workers."""
    speeds = [one["examples_per_s"] for one in runs]
    one = sorted(runs, key=lambda r: r["examples_per_s"])[len(runs) // 2]
    print(f"{point}: {spread(speeds)} examples/s")
    us = 1e6 / one["examples"]
    timed = {name: statistics.mean(t[name] for t in one["timed"]) for name in one["timed"][0]} if one["timed"] else {}
    parts = one["stages"] | timed | {"cpu of a worker": one["worker_cpu"], "cpu of the driver": one["driver_cpu"]}
    parts["train's own cpu"] = one["stages_cpu"]["train"]
    print(f"   us/example: {', '.join(f'{name} {seconds * us:.3f}' for name, seconds in parts.items())}")
    if timed:
        shared = (timed["fetch"] + timed["push_gradients"] + timed["summing"]) / one["stages"]["train"]
        waited = (timed["all_to_all"] + timed["summing"]) / one["stages"]["train"]
        sent = ", ".join(f"{kind} {num_bytes / 1e3:,.0f} kB" for kind, num_bytes in one["sent"].items())
        print(f"   of train {shared:.1%} is exchange ({waited:.1%} within collectives); sent a step by one: {sent}")


def print_link(repeats: int) -> Link:
    """Print and return the link of two workers."""
    print("ms of a collective by the kB that each of the workers sends")
    found: dict[int, Link] = {}
    for world in (2, 4):
        seconds = collectives(world, repeats)
        for name, by_size in seconds.items():
            print(f"   {world} {name}: {', '.join(f'{b >> 10} {1e3 * s:.2f}' for b, s in by_size.items())}")
        found[world] = link_of(seconds["all_to_all"], world)
    print(f"   {found[2].bytes_per_s / 1e6:,.0f} MB/s and {found[2].latency_s * 1e6:,.0f} us between two")
    return found[2]


def compare(args: argparse.Namespace, measured: Measured, link: Link) -> dict[str, float]:
    """Ratios of measured to predicted speed, and how well the model predicts the effect of more workers."""
    fields = tuple(Fields(keys, 1) for keys in keys_per_field(args.keys))
    shape = Shape("measured", fields, CRITEO.dense, CRITEO.dim, CRITEO.row_bytes)
    here = replace(MACHINE, on_gpu=False, inside=link, between=link)
    ratios: dict[str, float] = {}
    first = 0.0
    for setup, runs in measured.items():
        speed = statistics.median(one["examples_per_s"] for one in runs)
        point = Point(setup.workers, setup.cores, speed)
        one = check([point], shape, TWO_CORES, here, run_of(args, setup))[0]
        first = first or speed
        print(f"   {setup}: predicted {one.predicted:,.0f}, measured by it {one.ratio:.2f}")
        ratios[f"scaling_{setup}"] = speed / first
        ratios[f"measured_vs_model_{setup}"] = one.ratio
    return ratios


def scaling(measured: Measured, limits: Sequence[float]) -> dict[str, float]:
    """Speed-up of two workers that share a batch: over one worker, relative to the limit of the machine at that time,
    and by CPU time alone."""
    one, two = measured[POINTS[0]], measured[POINTS[1]]
    speed, limit = statistics.median(r["examples_per_s"] for r in two), statistics.median(limits)
    cpu = [
        statistics.median((workers * r["worker_cpu"] + (workers > 1) * r["driver_cpu"]) / r["examples"] for r in runs)
        for workers, runs in ((1, one), (2, two))
    ]
    print(f"two runs of one worker at the same time {spread(limits)} examples/s: what two cores give to them")
    print(f"processor time of an example: {1e6 * cpu[0]:.2f} us of one worker, {1e6 * cpu[1]:.2f} us of two and driver")
    return {
        "limit_2_on_2": limit / statistics.median(r["examples_per_s"] for r in one),
        "of_limit_2_on_2": speed / limit,
        "by_cpu_2_on_2": 2 * cpu[0] / cpu[1],
    }


def main() -> None:
    args = arguments("workers", __doc__ or "", options)
    if args.quick:
        args.keys, args.batches, args.batch, args.repeats = 150_000, 40, 512, 1
    print(machine())
    link = print_link(3 if args.quick else 30)
    measured: Measured = defaultdict(list)
    limits: list[float] = []
    for _ in range(args.repeats):
        for point in POINTS[:2] if args.quick else POINTS[: args.points]:
            measured[point].append(result(start(args, point)))
            print(f"   {point}: {measured[point][-1]['examples_per_s']:,.0f}", flush=True)
        limits.append(independent(args))
        print(f"   two at the same time: {limits[-1]:,.0f}", flush=True)
    for point, runs in measured.items():
        print_point(point, runs)
    finish(args, scaling(measured, limits) | compare(args, measured, link))


if __name__ == "__main__":
    main()
