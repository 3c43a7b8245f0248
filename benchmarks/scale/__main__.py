"""Training with tables of 2 M, 20 M and 200 M keys on disk: what grows with the table, and what does not.

    python -m benchmarks.scale [--keys N ...] [--repeats 3] [--page-cache] [--out DIR]

Each table is made directly (`cases.fill`): the initial row of every key in the log, every key in the map, one commit. A
measurement resumes from that commit in a hard-link copy, in a separate process: 40 blocks until device and host are
full, 160 measured blocks, a commit, then `verify`. The sizes take turns. Blocks have 8 batches of 4,096 examples with
ten columns that share one table. Of a batch's keys, 95.5 % are drawn from the same 1 M hot keys, 4 % are only on disk
(none recurs before all others have occurred), and 0.5 % are new. So hit rates are the same at all sizes, and so are the
caps of device, host and read; those of map and disk scale with the table. DeepFM, D = 8, MLP 16, row-wise Adagrad, rows
of 48 bytes with weights in bfloat16. The log is read with direct I/O, since the page cache could hold a small table but
not a large one; `--page-cache` reads through it.

Expected: 15.1 map bytes per key at 2 M and 12.4 from 7 M; a difference in peak memory between two sizes equal to that
of the maps; examples/s at 200 M at least 0.9 of those at 20 M, since only `find` in a larger map costs more (52 to 73
ns per key measured separately, 6 ms for the 280,000 keys of a block), and at 2 M more than at 20 M, since a read there
covers several rows; the same time to open, commit and verify a row; `plan` of a block longer, from the smallest to the
largest table, by at most a tenth of `train`; no insertion of a block with 280,000 new keys in more than 100 ms.

Tables and data stay below --data for the next time (13 GB, and 2 more during a run), measurements in --out; existing
ones are not repeated.

The last line is JSON: `map_bytes_per_key`, `longest_plan_ms` and `longest_insert_ms` of the largest table (CPU time),
`speed_A_vs_B` of the largest and the next table, `ram_bytes_per_key` and `plan_growth_vs_train` from the smallest to
the largest, and `open_growth`, `commit_growth`, `verify_growth`: seconds per row for the largest table, relative to the
next.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from benchmarks.common import arguments, finish, machine, spread
from benchmarks.once import Json, once, read
from benchmarks.scale.cases import FULL, QUICK, prepare
from pipeline.storage.disk_speed import measure
from pipeline.verify import verify

SIZES, QUICK_SIZES = (2_000_000, 20_000_000, 200_000_000), (20_000, 200_000)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, nargs="+", help="sizes of the tables, ascending")
    parser.add_argument("--page-cache", action="store_true", help="read the log through the page cache")
    parser.add_argument("--out", type=Path, help="a JSON file for each measurement; default: --data/scale")


def short(size: int) -> str:
    """Abbreviated number of keys, such as 200m or 20k."""
    for unit, letter in ((10**6, "m"), (10**3, "k")):
        if size >= unit:
            return f"{size / unit:g}{letter}"
    return str(size)


def drop_pages(folder: Path) -> None:
    """Drop all files below the folder from the page cache, so that every measurement starts without them."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed_verify(run_dir: Path) -> Json:
    """Verify the run, which must be intact. Returns the seconds, and the number of log rows checked."""
    rows = sum(path.stat().st_size // 8 for path in (run_dir / "table.zarr" / "keys").glob("c.*"))
    drop_pages(run_dir)
    start = time.perf_counter()
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(io.StringIO()):
        code = verify(run_dir)
    assert code == 0, said.getvalue()
    return {"verify_s": time.perf_counter() - start, "verified_rows": rows}


def one_run(folder: Path, num_keys: int, quick: bool, direct: bool) -> Json:
    """Measure a hard-link copy of the table in `folder`. No file of a run is modified in place, so the table stays."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "run", copy, copy_function=os.link)
    drop_pages(copy)
    numbers = map(str, (num_keys, int(quick), int(direct)))
    command = [sys.executable, "-m", "benchmarks.scale.one", str(folder), str(copy), *numbers]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout.splitlines()[-1]) | timed_verify(copy)
    shutil.rmtree(copy)
    return dict(result)


COLUMNS: dict[str, tuple[str, Callable[[Json], float]]] = {
    "examples/s": ("{:,.0f}", lambda of: of["rate"]),
    "device hits": ("{:.4f}", lambda of: of["device_hits"]),
    "host hits": ("{:.4f}", lambda of: of["host_hits"]),
    "disk hits": ("{:.4f}", lambda of: of["disk_hits"]),
    "new": ("{:.4f}", lambda of: of["new"]),
    "disk rows an example": ("{:.3f}", lambda of: of["disk_rows"]),
    "map bytes a key": ("{:.2f}", lambda of: of["map_bytes"] / of["keys"]),
    "peak RSS, MiB": ("{:,.0f}", lambda of: of["peak_bytes"] / 2**20),
    "train of a block, ms": ("{:.1f}", lambda of: 1e3 * of["train_s"]),
    "plan of a block, ms": ("{:.1f}", lambda of: 1e3 * of["plan_s"]),
    "plan of a block, CPU ms": ("{:.1f}", lambda of: 1e3 * of["plan_cpu_s"]),
    "longest plan, ms": ("{:.1f}", lambda of: 1e3 * of["longest_plan_s"]),
    "longest plan, CPU ms": ("{:.1f}", lambda of: 1e3 * of["longest_plan_cpu_s"]),
    "longest insert of new keys, CPU ms": ("{:.1f}", lambda of: 1e3 * of["longest_insert_s"]),
    "open, s a million keys": ("{:.3f}", lambda of: 1e6 * of["open_s"] / of["opened_keys"]),
    "commit, s a million rows": ("{:.3f}", lambda of: 1e6 * of["commit_s"] / of["committed_rows"]),
    "verify, s a million log rows": ("{:.3f}", lambda of: 1e6 * of["verify_s"] / of["verified_rows"]),
}

Table = dict[str, list[float]]
"""Medians by column: one value for each size."""


def medians(sizes: Sequence[int], runs: dict[int, list[Json]]) -> Table:
    return {name: [statistics.median(map(value, runs[size])) for size in sizes] for name, (_, value) in COLUMNS.items()}


def print_table(sizes: Sequence[int], runs: dict[int, list[Json]], table: Table) -> None:
    print("\nexamples/s, median [least .. most]")
    for size in sizes:
        print(f"  {short(size):>6} keys {spread([run['rate'] for run in runs[size]])}")
    print(f"\n| keys | {' | '.join(map(short, sizes))} |\n| --- |{' --- |' * len(sizes)}")
    for name, (form, _) in COLUMNS.items():
        print(f"| {name} | {' | '.join(form.format(value) for value in table[name])} |")


def ratios(sizes: Sequence[int], runs: dict[int, list[Json]], table: Table) -> dict[str, float]:
    """The last line. Speeds are compared within rounds, since load on the machine changes between rounds."""
    largest, before = sizes[-1], sizes[-2]
    speeds = [now["rate"] / then["rate"] for now, then in zip(runs[largest], runs[before], strict=True)]
    keys = largest - sizes[0]
    # CPU time of `plan`, since other load randomly increases its wall time.
    memory, plan = table["peak RSS, MiB"], table["plan of a block, CPU ms"]
    last = {name: values[-1] / values[-2] for name, values in table.items() if values[-2]}
    return {
        "map_bytes_per_key": table["map bytes a key"][-1],
        f"speed_{short(largest)}_vs_{short(before)}": statistics.median(speeds),
        "ram_bytes_per_key": max(0.0, (memory[-1] - memory[0]) * 2**20 / keys),
        "plan_growth_vs_train": max(0.0, plan[-1] - plan[0]) / table["train of a block, ms"][0],
        "longest_plan_ms": table["longest plan, CPU ms"][-1],
        "longest_insert_ms": table["longest insert of new keys, CPU ms"][-1],
        "open_growth": last["open, s a million keys"],
        "commit_growth": last["commit, s a million rows"],
        "verify_growth": last["verify, s a million log rows"],
    }


def main() -> None:
    args = arguments("scale", __doc__ or "", options)
    sizes = args.keys or (QUICK_SIZES if args.quick else SIZES)
    scale, direct = QUICK if args.quick else FULL, not (args.quick or args.page_cache)
    repeats = 1 if args.quick else args.repeats
    root = args.data.absolute() / "scale"
    out = args.out or root
    for folder in (root, out):
        folder.mkdir(parents=True, exist_ok=True)
    print(machine())
    speed = measure(root, direct)
    print(f"disk: {1 / speed.seconds_per_read:,.0f} scattered reads/s, {speed.bytes_per_second / 1e6:,.0f} MB/s")
    runs: dict[int, list[Json]] = {size: [] for size in sizes}
    for size in sizes:
        prepare(root / str(size), size, scale, direct, speed)
    for repeat in range(repeats):
        for size in sizes:
            path = out / f"{short(size)}{'_page_cache' * args.page_cache}_{repeat}.json"
            once(path, lambda: one_run(root / str(size), size, args.quick, direct))  # noqa: B023
            if result := read(path):
                runs[size].append(result)
    table = medians(sizes, runs)
    print_table(sizes, runs, table)
    finish(args, ratios(sizes, runs, table))


if __name__ == "__main__":
    main()
