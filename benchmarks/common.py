"""Helpers for all benchmarks: describe the machine, compute medians, print the final line of JSON, write it to a
file."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from pipeline.driver.resume import environment

QUANTILE = 1.833
"""Quantile of Student's t with nine degrees of freedom, for the 90 % interval of ten pairs; about right for more."""


def arguments(
    name: str, what: str, options: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """Parse the command line: the arguments common to all benchmarks, and the `options` of this one."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=what)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, says nothing of speed")
    parser.add_argument("--data", type=Path, default=Path("data/benchmarks"), help="where synthetic data is made once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures, with commit, machine and date, to it"
    )
    parser.set_defaults(benchmark=f"benchmarks.{name}")
    if options:
        options(parser)
    return parser.parse_args()


def machine() -> str:
    """Processor, cores, memory and versions of the main libraries, in words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numba", "dask", "zarr", "pyarrow", "numpy"))
    processor = environment()["processor"]
    return f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {packages}"


def in_own_process(module: str, data: Path, *numbers: int) -> float:
    """Run a module of `benchmarks` in a fresh process, and return the number that it prints last."""
    command = [sys.executable, "-m", f"benchmarks.{module}", str(data), *map(str, numbers)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def spread(values: Sequence[float]) -> str:
    """Median and, in brackets, minimum and maximum."""
    return f"{statistics.median(values):12,.0f}   [{min(values):,.0f} .. {max(values):,.0f}]"


def interval(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Geometric mean of the ratios of pairs, and the lower end of its 90 % interval; for a single pair, its ratio
    twice."""
    logs = [math.log(a / b) for a, b in zip(one, other, strict=True)]
    mean = statistics.mean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return math.exp(mean), math.exp(mean - QUANTILE * error)


def finish(args: argparse.Namespace, figures: Mapping[str, float]) -> None:
    """Print the last line, the figures as JSON. With `--json FILE`, also replace the measured part of FILE and keep the
    manually written part: labels, aims and notes (see `benchmarks.results`)."""
    values = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps(values))
    if args.json:
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        command = " ".join(
            ["python -m", args.benchmark, *(a for a in sys.argv[1:] if a not in ("--json", str(args.json)))]
        )
        written = json.loads(args.json.read_text()) if args.json.exists() else {}
        written |= {"command": command, "commit": commit.stdout.strip(), "date": f"{datetime.date.today()}"}
        args.json.write_text(json.dumps(written | {"machine": machine(), "values": values}, indent=1) + "\n")
