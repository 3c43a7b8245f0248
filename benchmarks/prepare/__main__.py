"""Preparation of a log in Criteo's layout: speed compared with alternatives, peak memory, kills.

csv_alone: pyarrow.csv reads the log with all cores and writes nothing: the limit
csv_and_parquet: the same, and pyarrow writes one Parquet file with its default options
same_parquet, same_parquet_split: the same with the options, types and splits of ours
ours, ours_split: `pipeline prepare`, all rows for training, or a tenth each for validation and test
pandas, polars (if installed): read_csv and to_parquet; scan_csv and sink_parquet
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import arguments, finish, machine, spread
from benchmarks.prepare.data import ensure
from benchmarks.prepare.ways import WAYS

MAX_APART = 0.1
"""Maximum relative difference of peak memory with ten times the input."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--kills", type=int, default=20, help="runs that are killed at a random instant")
    parser.add_argument("--only", choices=("ways", "memory", "kills"), help="one of the three parts")


def run(way: str, log: Path, rows: int, piece: str) -> tuple[float, ...]:
    """Run one way: rows per second, rows per second of CPU time, bytes per row, peak memory in MiB."""
    with tempfile.TemporaryDirectory(dir=log.parent) as out:
        command = [sys.executable, "-m", "benchmarks.prepare.ways", way, str(log), out, str(rows), piece]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return tuple(map(float, done.stdout.split()[-4:]))


def ways(log: Path, rows: int, repeats: int) -> dict[str, float]:
    """Measure all ways, interleaved. Returns the rows per second of each as a share of the limit."""
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            found[way].append(run(way, log, rows, "64 MiB"))
    medians, of_cpu_medians = {}, {}
    for way, values in found.items():
        speeds, of_cpu, sizes, peaks = zip(*values, strict=True)
        medians[way], of_cpu_medians[way] = statistics.median(speeds), statistics.median(of_cpu)
        print(f"{way:18} {spread(speeds)} rows/s {of_cpu_medians[way]:10,.0f} per core's second", end="")
        print(f" {sizes[0]:6.1f} bytes a row, at most {max(peaks):6,.0f} MiB")
    shares = {f"{way}_vs_csv_alone": speed / medians["csv_alone"] for way, speed in medians.items()}
    shares["ours_vs_csv_and_parquet"] = medians["ours"] / medians["csv_and_parquet"]
    for ours, theirs in (("ours", "same_parquet"), ("ours_split", "same_parquet_split")):
        shares[f"{ours}_vs_{theirs}"] = medians[ours] / medians[theirs]
        shares[f"{ours}_vs_{theirs}_of_cpu"] = of_cpu_medians[ours] / of_cpu_medians[theirs]
    return shares


def memory(folder: Path, rows: int, piece: str) -> dict[str, float]:
    logs = {n: ensure(folder / f"criteo-{n}.tsv", n) for n in (rows, 10 * rows)}
    once, ten = (run("ours_split", log, n, piece)[-1] for n, log in logs.items())
    print(f"peak memory of {rows:,} rows {once:,.0f} MiB, of {10 * rows:,} {ten:,.0f} MiB ({piece})")
    assert abs(ten / once - 1) < MAX_APART, f"memory grows with the input: {ten / once:.3f}"
    return {"memory_10x_vs_1x": ten / once}


def command(log: Path, out: Path, piece: str) -> list[str]:
    split = ["--split", "ratio:validation=0.1,test=0.1", "--piece-size", piece]
    return [sys.executable, "-m", "pipeline", "prepare", "criteo", str(log), "--out", str(out), *split]


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def kills(log: Path, number: int, piece: str) -> dict[str, float]:
    """Kill a preparation repeatedly, then let it finish. Repeat with others until there were `number` kills."""
    killed = differ = 0
    with tempfile.TemporaryDirectory(dir=log.parent) as folder:
        # The workflow is named after the folder: both have the same name.
        begin, undisturbed, out = time.perf_counter(), Path(folder) / "undisturbed" / "out", Path(folder) / "out"
        subprocess.run(command(log, undisturbed, piece), check=True, capture_output=True)
        seconds, whole = time.perf_counter() - begin, contents(undisturbed)
        while killed < number:
            for _ in range(3):
                with subprocess.Popen(command(log, out, piece), stderr=subprocess.PIPE, stdout=subprocess.PIPE) as run:
                    time.sleep(random.uniform(0, seconds))
                    killed += run.poll() is None
                    run.kill()
            subprocess.run(command(log, out, piece), check=True, capture_output=True)
            differ += contents(out) != whole
            shutil.rmtree(out)
    print(f"{killed} kills: {differ} outputs differ from that of an undisturbed run")
    assert not differ
    return {"kills": float(killed), "outputs_that_differ": float(differ)}


def main() -> None:
    args = arguments("prepare", "Preparing Criteo's form, compared with other ways.", options)
    print(machine())
    rows = 20_000 if args.quick else args.rows
    piece = "256 KiB" if args.quick else "16 MiB"
    folder = args.data / "prepare"
    log = ensure(folder / f"criteo-{rows}.tsv", rows)
    ratios: dict[str, float] = {}
    if args.only in (None, "ways"):
        ratios |= ways(log, rows, 1 if args.quick else args.repeats)
    if args.only in (None, "memory"):
        ratios |= memory(folder, 20_000 if args.quick else 400_000, piece)
    if args.only in (None, "kills"):
        ratios |= kills(log, 3 if args.quick else args.kills, piece)
    finish(args, ratios)


if __name__ == "__main__":
    main()
