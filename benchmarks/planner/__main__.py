"""Predictions of `--explain` against ten real runs.

    python -m benchmarks.planner [--repeats 3] [--only CASE ...]

Each workflow of `cases.py` is predicted (`pipeline run --explain --json`) and then trained, in separate processes and
new folders. The machine is recalibrated before the first case. The benchmark compares hit rates of device and host,
peak RAM (of all concurrent processes), size of the run directory, and examples/s of the whole run: training,
evaluation, commits and the final fingerprint.

Expected: hit rates within 2 points, RAM and disk within 10 %, examples/s within 20 %. The table shows every miss.

The last line is JSON: the largest error of each kind (for hit rates the difference, for the others relative), and the
share of cases whose speed is within 20 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish, machine
from benchmarks.once import Json
from benchmarks.planner.cases import CASES, FULL, QUICK, QUICK_CASES, Case, Scale, workflow_of
from pipeline.machine.cache import CACHE_FOLDER

ALLOWED = {"hits": 0.02, "ram": 0.1, "disk": 0.1, "speed": 0.2}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=list(CASES), help="cases to measure; default: all")


def call(folder: Path, *command: str) -> Json:
    """Run a module in `folder`. Returns the JSON of its last line."""
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = os.environ | {CACHE_FOLDER: str(folder.parent / "cache"), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(case: Case, scale: Scale, data: Path, folder: Path, repeats: int) -> tuple[Json, list[Json]]:
    """Return the prediction of a case, and its runs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(workflow_of(case, scale, data)))
    settings = [word for path, value in case.changes.items() for word in ("--set", f"{path}={json.dumps(value)}")]
    command = ["case.json", *settings, *case.arguments]
    predicted = call(folder, "pipeline.run", *command, "--explain", "--json")["prediction"]
    runs = []
    for _ in range(repeats):
        peak = call(folder, "benchmarks.planner.one", *command, "--fresh")["peak_bytes"]
        run_dir = folder / "runs" / "case"
        files = [path for path in run_dir.rglob("*") if path.is_file()]
        result = json.loads((run_dir / "result.json").read_text())
        runs.append({
            "speed": result["examples_per_second"], "ram": peak,
            "disk": sum(512 * path.stat().st_blocks for path in files),
            **{tier: result["tiers"][tier]["hit_rate"] or 0.0 for tier in ("device", "host")},
        })  # fmt: skip
        for path in folder.glob("runs/case*"):
            shutil.rmtree(path)
    return predicted, runs


def row_of(predicted: Json, runs: Sequence[Json]) -> dict[str, tuple[float, float]]:
    """Pairs (predicted, measured), by measure."""
    found: dict[str, Any] = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    rates = predicted["hit_rates"]
    expected = {
        "speed": predicted["run_examples_per_second"], "ram": predicted["ram_bytes"], "disk": predicted["disk_bytes"],
        "device": rates["device"] or 0.0, "host": rates["host"] or 0.0,
    }  # fmt: skip
    return {name: (expected[name], found[name]) for name in expected}


def misses(row: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Error of each kind: points for hit rates; for the others, relative to the measured value."""
    hits = max(abs(expected - found) for expected, found in (row["device"], row["host"]))
    return {"hits": hits} | {name: abs(row[name][0] / row[name][1] - 1) for name in ("ram", "disk", "speed")}


def print_table(rows: dict[str, dict[str, tuple[float, float]]], binds: dict[str, str]) -> None:
    """Print predicted / measured, with errors that are too large in bold."""
    forms = {"device": (100, "{:.1f}"), "host": (100, "{:.1f}"), "ram": (2**-20, "{:,.0f}"),
             "disk": (2**-20, "{:,.0f}"), "speed": (1, "{:,.0f}")}  # fmt: skip
    print("\n| predicted / measured | device hits, % | host hits, % | peak RAM, MiB | disk, MiB | examples/s | binds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, row in rows.items():
        missed, cells = misses(row), []
        for measure_of, (scale, form) in forms.items():
            pair = " / ".join(form.format(scale * value) for value in row[measure_of])
            kind = "hits" if measure_of in ("device", "host") else measure_of
            off = abs(row[measure_of][0] - row[measure_of][1]) if kind == "hits" else missed[kind]
            cells.append(f"**{pair}**" if off > ALLOWED[kind] else pair)
        print(f"| {name} | {' | '.join(cells)} | {binds[name]} |")


def main() -> None:
    args = arguments("planner", __doc__ or "", options)
    scale, repeats = (QUICK, 1) if args.quick else (FULL, args.repeats)
    names = args.only or (QUICK_CASES if args.quick else CASES)
    root = args.data.absolute()
    work = root / "planner"
    shutil.rmtree(work / "cache", ignore_errors=True)
    print(machine())
    rows, binds = {}, {}
    for number, name in enumerate(names):
        predicted, runs = measure(CASES[name], scale, root, work / str(number), repeats)
        rows[name], binds[name] = row_of(predicted, runs), predicted["block"]["binds"]
        print(f"{name}: {misses(rows[name])}", flush=True)
    print_table(rows, binds)
    worst = {f"{kind}_off": max(misses(row)[kind] for row in rows.values()) for kind in ALLOWED}
    near = sum(misses(row)["speed"] <= ALLOWED["speed"] for row in rows.values()) / len(rows)
    finish(args, worst | {"speed_within_20": near})


if __name__ == "__main__":
    main()
