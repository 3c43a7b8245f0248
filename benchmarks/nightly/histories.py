"""Histories made day by day: a night of 50,000 events with the histories of 200,000 and of 2,000,000 users.

    python -m benchmarks.nightly.histories [--repeats 9] [--quick]

Both have three events of each user before the first night; nights are interleaved. The last line is JSON:
small_seconds, small_cpu, big_seconds, big_cpu: medians of the command; longer, more_cpu: medians of ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import arguments, finish
from pipeline.records import I64

DAY, FIRST = 86_400_000, 20_000
BEFORE = 3
"""Number of events of each user before the first night."""


def write_day(file: Path, day: int, users: I64) -> None:
    """Write one event for each element of `users`, in order of time."""
    rng = np.random.default_rng(day)
    times = (FIRST + day) * DAY + np.sort(rng.integers(0, DAY, len(users)))
    columns = {"user": users, "item": rng.integers(0, 100_000, len(users)), "label": rng.integers(0, 2, len(users))}
    pq.write_table(pa.table(columns | {"time": pa.array(times, pa.timestamp("ms"))}), file)


def prepare(file: Path, into: Path, *options: str) -> tuple[float, float]:
    """Make a day's histories. Returns seconds and CPU seconds of the command."""
    roles = ("--schema", "label:label", "user:category", "item:category", "time:time")
    columns = ("--user", "user", "--time", "time", "--items", "item", "--last", "20")
    command = [sys.executable, "-m", "pipeline", "prepare", "sequences", "--examples", str(file), "--into", str(into)]
    start, before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    subprocess.run([*command, *columns, *roles, *options], check=True, stdout=subprocess.DEVNULL)
    after = getrusage(RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    args = arguments("nightly.histories", "a night with the histories of few and of many users")
    sizes, events = (dict(small=500, big=2_000), 500) if args.quick else (dict(small=200_000, big=2_000_000), 50_000)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sizes}
    with TemporaryDirectory() as folder:
        for night in range(args.repeats + 1):
            for name in sizes if night % 2 else reversed(sizes):
                users = np.tile(np.arange(sizes[name]), BEFORE)
                if night:
                    users = np.random.default_rng(night).integers(0, sizes[name], events)
                write_day(file := Path(folder) / f"{name}-{night:02}.parquet", night, users)
                took = prepare(file, Path(folder) / name, *([] if night else ["--memory", "3 GiB"]))
                print(f"{name}, night {night}: {took[0]:.1f} s, {took[1]:.1f} s of CPU", flush=True)
                if night:
                    found[name].append(took)
    figures = {}
    for name, measured in found.items():
        seconds, cpu = zip(*measured, strict=True)
        figures |= {f"{name}_seconds": statistics.median(seconds), f"{name}_cpu": statistics.median(cpu)}
    pairs = list(zip(found["small"], found["big"], strict=True))
    for n, what in enumerate(("longer", "more_cpu")):
        figures[what] = statistics.median(big[n] / small[n] for small, big in pairs)
    finish(args, figures)


if __name__ == "__main__":
    main()
