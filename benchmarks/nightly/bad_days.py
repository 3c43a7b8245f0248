"""Real logs delivered day by day, well and badly: what the bad deliveries cost.

    python -m benchmarks.nightly.bad_days --shared FOLDER [--seeds 5] [--quick]

Well: each night brings the rows of one day. Badly: 3 % of a day's rows come a night late; each night one row's clock
is a year ahead; the first day comes again under another name; one day is missing and comes the night after; in the last
night the first two days are compacted into one file. Both runs take late rows and rows ahead. NE is the mean over the
days from the third on, each scored by the model of what came before it.

The last line is JSON: LOG_well_ne and LOG_badly_ne, means over seeds, LOG_less and LOG_error, the mean difference and
its standard error over seeds, and LOG_KIND, the rows out of place by kind with the first seed.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from benchmarks.common import arguments, finish
from benchmarks.nightly.logs import LOGS, Log, made_log
from benchmarks.nightly.ours import workflow_of
from pipeline.api import Time

DAY = 86_400_000
YEAR = 365 * DAY
LATE = 0.03
TIME = "clock"
"""Column of milliseconds since 1970."""


def days_of(log: Log, shared: Path) -> list[pa.Table]:
    """Examples of each UTC day, with the column TIME."""
    tables = []
    for file in sorted(shared.glob(log.pattern)):
        table = log.add(pq.read_table(file))
        name = "time" if "time" in table.column_names else "time_ms"
        columns = {log.label: table[log.label], TIME: table[name].cast(pa.int64())}
        tables.append(pa.table(columns | {field: table[field] for field in log.fields}))
    rows = pa.concat_tables(tables).sort_by(TIME)
    days = rows[TIME].to_numpy() // DAY
    return [rows.filter(pa.array(days == day)) for day in np.unique(days)]


def well(days: list[pa.Table], folder: Path, rng: np.random.Generator) -> Iterator[list[str]]:
    """Write the files of each night in turn, and yield their names."""
    for number, rows in enumerate(days):
        pq.write_table(rows, folder / f"{number:02}.parquet")
        yield [f"{number:02}.parquet"]


def badly(days: list[pa.Table], folder: Path, rng: np.random.Generator) -> Iterator[list[str]]:
    """Write the files of each night in turn, with the faults of this module's description."""
    names: list[list[str]] = [[f"{number:02}.parquet"] for number in range(len(days))]
    missing = len(days) // 2
    late = days[0].slice(0, 0)
    for number, rows in enumerate(days):
        is_late = (rng.random(rows.num_rows) < LATE) & (number + 1 < len(days))
        here, late = pa.concat_tables([late, rows.filter(pa.array(~is_late))]), rows.filter(pa.array(is_late))
        clock = here[TIME].to_numpy().copy()
        clock[rng.integers(len(clock) // 2, len(clock))] += YEAR
        here = here.set_column(here.column_names.index(TIME), TIME, pa.array(clock))
        pq.write_table(here, folder / names[number][0])
        if number == missing:
            continue
        night = [*names[number], *(names[missing] if number == missing + 1 else ())]
        if number == 1:
            (folder / "again.parquet").write_bytes((folder / names[0][0]).read_bytes())
            night.append("again.parquet")
        if number == len(days) - 1:
            old = [folder / names[0][0], folder / names[1][0]]
            pq.write_table(pa.concat_tables(map(pq.read_table, old)), folder / "compacted.parquet")
            for file in old:
                file.unlink()
            night.append("compacted.parquet")
        yield night


def trained(log: Log, days: list[pa.Table], deliver: Any, seed: int) -> tuple[float, int, Counter[str]]:
    """Mean NE of the days from the third on, rows trained on, and rows out of place by kind."""
    taken = {"late": "take", "ahead": "take", "time": Time(name=TIME, unit="ms")}
    with TemporaryDirectory() as name, redirect_stderr(StringIO()):
        folder, run = Path(name) / "log", Path(name) / "run"
        folder.mkdir()
        nights = deliver(days, folder, np.random.default_rng(seed))
        first = [folder / file for file in next(nights)]
        workflow = workflow_of(log, folder, {"seed": seed, "optimizer.rows.lr": 0.005}, first, **taken)
        pipeline.train(workflow, run, serial=True, verbose=False).close()
        for files in nights:
            added = [folder / file for file in files]
            pipeline.train(workflow, run, serial=True, verbose=False, extend=added).close()
        with pipeline.open_run(run) as opened:
            result = opened.result
        scores = {entry["span"]: entry["ne"] for entry in result["epochs"] if entry["split"] == "span"}
        kinds = Counter[str]()
        for rows in result.get("out_of_place", ()):
            kinds[f"{rows['kind']}_{'taken' if rows['trained_with'] else 'left'}"] += rows["rows"]
        return statistics.mean(scores[day] for day in sorted(scores)[2:]), result["examples"], kinds


def compare(log: Log, days: list[pa.Table], seeds: int) -> dict[str, float]:
    """Print a table of a log, and return its figures."""
    print(f"{log.name}: {len(days)} days, {sum(day.num_rows for day in days):,} rows, {seeds} seeds", flush=True)
    found = {how.__name__: [trained(log, days, how, seed) for seed in range(seeds)] for how in (well, badly)}
    figures: dict[str, float] = {}
    for how, of_seeds in found.items():
        _, rows, kinds = of_seeds[0]
        figures[f"{log.name}_{how}_ne"] = mean = statistics.mean(of[0] for of in of_seeds)
        print(f"  {how:6} NE {mean:.4f}  trained on {rows:,} rows  {dict(kinds)}", flush=True)
    less = [a[0] - b[0] for a, b in zip(found["badly"], found["well"], strict=True)]
    error = statistics.stdev(less) / math.sqrt(seeds) if seeds > 1 else math.nan
    print(f"  badly less well {statistics.mean(less):+.4f}, standard error {error:.4f}", flush=True)
    kinds = {f"{log.name}_{kind}": rows for kind, rows in found["badly"][0][2].items()}
    return figures | {f"{log.name}_less": statistics.mean(less), f"{log.name}_error": error} | kinds


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shared", type=Path, help="folder with the real logs; default: a synthetic one")
    parser.add_argument("--seeds", type=int, default=5)


def main() -> None:
    args = arguments("nightly.bad_days", __doc__ or "", options)
    figures: dict[str, float] = {}
    if args.shared is None or args.quick:
        log, spans = made_log()
        days = [
            day.append_column(TIME, pa.array(20_000 * DAY + number * DAY + np.arange(day.num_rows)))
            for number, day in enumerate(spans)
        ]
        figures |= compare(log, days, 2)
    for log in LOGS if args.shared and not args.quick else ():
        if log.name != "movietweetings":
            figures |= compare(log, days_of(log, args.shared), args.seeds)
    finish(args, figures)


if __name__ == "__main__":
    main()
