"""The same night as the 10th and as the 365th of a year, with 200 files a day: time, memory and size of the commit.

    python -m benchmarks.nightly.year_size [--repeats 3] [--quick]

The days before come thirty in a command, and the night is one more, on a copy of that run; nights of both kinds are
interleaved. The last line is JSON: NUMBER_seconds, NUMBER_cpu and NUMBER_mib, medians of the whole command of
night NUMBER, NUMBER_kib, the size of its commit; longer, the ratio of CPU seconds; more_mib, the difference of peaks.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import arguments, finish
from pipeline.api import LR, Category, Data, Model, Optimizer, Schedule, Sgd, Storage, Time, Workflow

ROWS, DAY, TOGETHER = 5, 86_400, 30
FIRST = 20_000 * DAY


def write_days(folder: Path, days: int, files: int) -> None:
    """Write files of ROWS rows, one folder for each day."""
    for day in range(days):
        (folder / f"{day:03}").mkdir(parents=True)
        for number in range(files):
            rng = np.random.default_rng([day, number])
            seconds = FIRST + DAY * day + np.sort(rng.integers(0, DAY, ROWS))
            columns = {"label": rng.integers(0, 2, ROWS), "item": rng.integers(0, 5_000, ROWS), "time": seconds}
            pq.write_table(pa.table(columns), folder / f"{day:03}" / f"{number:03}.parquet")


def workflow_of(folder: Path, days: int) -> Workflow:
    """Workflow over the first days."""
    return Workflow(
        name="year",
        data=Data(
            root=folder, train=tuple(f"{day:03}" for day in range(days)), labels=("label",),
            categories=(Category(name="item"),), time=Time(name="time", unit="s"), span="day",
        ),
        model=Model(kind=LR, embedding_dim=0), optimizer=Optimizer(rows=Sgd(lr=0.05)),
        storage=Storage(device="8 MiB", host="8 MiB", disk="1 GiB", read="64 MiB", map="8 MiB"),
        schedule=Schedule(batch_size=256, threads=1), device="cpu",
    )  # fmt: skip


def run(workflow: Path, run_dir: Path, *options: str) -> tuple[float, float, float]:
    """Run a command. Returns its seconds, CPU seconds, and peak memory in MiB."""
    command = [sys.executable, "-m", "pipeline.run", str(workflow), "--serial"]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--out", str(run_dir), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"a command on {run_dir} failed")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    args = arguments("nightly.year_size", "the same night as the 10th and as the 365th of a year")
    nights, files, repeats = ((3, 6), 4, 1) if args.quick else ((10, 365), 200, args.repeats)
    found: dict[int, list[tuple[float, float, float]]] = {night: [] for night in nights}
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_days(folder / "days", max(nights), files)
        first, last = nights
        workflow = folder / "year.json"
        workflow.write_text(workflow_of(folder / "days", first - 1).model_dump_json())
        run(workflow, folder / f"before-{first}")
        shutil.copytree(folder / f"before-{first}", folder / f"before-{last}")
        for begin in range(first - 1, last - 1, TOGETHER):
            days = [str(folder / "days" / f"{day:03}") for day in range(begin, min(begin + TOGETHER, last - 1))]
            seconds, _, _ = run(workflow, folder / f"before-{last}", "--extend", *days)
            print(f"{len(days)} days more: {seconds:.0f} s", flush=True)
        for _ in range(repeats):
            for night in nights:
                run_dir = folder / f"night-{night}"
                shutil.rmtree(run_dir, ignore_errors=True)
                shutil.copytree(folder / f"before-{night}", run_dir)
                day = str(folder / "days" / f"{night - 1:03}")
                found[night].append(run(workflow, run_dir, "--extend", day))
                print(f"night {night}: {found[night][-1][0]:.1f} s, peak {found[night][-1][2]:.0f} MiB", flush=True)
        figures = {}
        for night, measured in found.items():
            middle = [statistics.median(values) for values in zip(*measured, strict=True)]
            figures |= {f"{night}_{what}": value for what, value in zip(("seconds", "cpu", "mib"), middle, strict=True)}
            commit = max((folder / f"night-{night}" / "commits").glob("*.json"))
            figures[f"{night}_kib"] = commit.stat().st_size / 1024
    figures["longer"] = figures[f"{last}_cpu"] / figures[f"{first}_cpu"]
    figures["more_mib"] = figures[f"{last}_mib"] - figures[f"{first}_mib"]
    finish(args, figures)


if __name__ == "__main__":
    main()
