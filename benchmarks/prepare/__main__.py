"""Preparation of a log in Criteo's layout, compared with pyarrow on the same cores.

csv_alone: pyarrow.csv reads the log with all cores and writes nothing: the limit
same_parquet, same_parquet_split: the same, and writes Parquet with the options, types and splits of ours
ours, ours_split: `pipeline prepare`, all rows for training, or a tenth each for validation and test
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import arguments, finish, machine, spread
from benchmarks.prepare.data import ensure
from benchmarks.prepare.ways import WAYS


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000)


def run(way: str, log: Path, rows: int) -> tuple[float, ...]:
    """Run one way: rows per second, microseconds of CPU time a row, peak memory in MiB."""
    with tempfile.TemporaryDirectory(dir=log.parent) as out:
        command = [sys.executable, "-m", "benchmarks.prepare.ways", way, str(log), out, str(rows)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return tuple(map(float, done.stdout.split()[-3:]))


def main() -> None:
    args = arguments("prepare", "Preparing Criteo's form, compared with pyarrow.", options)
    print(machine())
    rows = 20_000 if args.quick else args.rows
    log = ensure(args.data / "prepare" / f"criteo-{rows}.tsv", rows)
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for _ in range(1 if args.quick else args.repeats):
        for way in WAYS:
            found[way].append(run(way, log, rows))
    speed, cpu = {}, {}
    for way, values in found.items():
        speeds, of_cpu, peaks = zip(*values, strict=True)
        speed[way], cpu[way] = statistics.median(speeds), statistics.median(of_cpu)
        print(f"{way:18} {spread(speeds)} rows/s, {cpu[way]:.2f} us of CPU a row, at most {max(peaks):,.0f} MiB")
    finish(args, {
        "us_a_row": cpu["ours"],
        "cpu_vs_pyarrow": cpu["ours"] / cpu["same_parquet"],
        "cpu_vs_pyarrow_splits": cpu["ours_split"] / cpu["same_parquet_split"],
        "ours_vs_csv_alone": speed["ours"] / speed["csv_alone"],
    })  # fmt: skip


if __name__ == "__main__":
    main()
