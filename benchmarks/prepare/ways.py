"""One way to convert a log in Criteo's layout to Parquet: python -m benchmarks.prepare.ways WAY LOG OUT ROWS.

It prints rows per second without the time of imports, microseconds of CPU time a row, and peak memory in MiB.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.prepare.main import main as prepare
from pipeline.prepare.parts import OPTIONS, ROW_GROUP
from pipeline.settings import SPLITS

NUMBERS = [f"i{n}" for n in range(1, 14)]
CATEGORIES = [f"c{n}" for n in range(1, 27)]
NAMES = ["label", *NUMBERS, *CATEGORIES]


def read(log: Path) -> pa.Table:
    """Read the log with all cores and the same types as our preparation."""
    types = {"label": pa.int8()} | dict.fromkeys(NUMBERS, pa.int32()) | dict.fromkeys(CATEGORIES, pa.string())
    return pyarrow.csv.read_csv(
        log,
        pyarrow.csv.ReadOptions(column_names=NAMES),
        pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
        pyarrow.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True),
    )


def csv_alone(log: Path, out: Path) -> None:
    read(log)


def same_parquet(log: Path, out: Path) -> None:
    _write_as_ours(read(log), out / "all.parquet")


def same_parquet_split(log: Path, out: Path) -> None:
    table = read(log)
    split_N = np.random.default_rng(0).choice(3, len(table), p=[0.8, 0.1, 0.1])
    for place, split in enumerate(SPLITS):
        _write_as_ours(table.filter(pa.array(split_N == place)), out / f"{split}.parquet")


def _write_as_ours(table: pa.Table, path: Path) -> None:
    """Write one Parquet file with the row groups, dictionaries and compression of ours."""
    pq.write_table(table, path, row_group_size=ROW_GROUP, use_dictionary=CATEGORIES, **OPTIONS)


def ours(log: Path, out: Path, *options: str) -> None:
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = prepare(["criteo", str(log), "--out", str(out), *options])
    if code:
        raise SystemExit(said.getvalue())


def ours_split(log: Path, out: Path) -> None:
    ours(log, out, "--split", "ratio:validation=0.1,test=0.1")


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "csv_alone": csv_alone,
    "same_parquet": same_parquet,
    "same_parquet_split": same_parquet_split,
    "ours": ours,
    "ours_split": ours_split,
}
"""Ways by name. The first is the limit: it writes nothing."""


def peak_mib() -> float:
    """Peak memory of this process; `getrusage` would include the memory of its parent at the start."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10


def main() -> None:
    way, log, out, rows = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    # Read the log once, so that as much of it as fits is in the page cache.
    with open(log, "rb") as file:
        while file.read(1 << 20):
            pass
    before, cpu_before = time.perf_counter(), time.process_time()
    WAYS[way](log, out)
    seconds, cpu_seconds = time.perf_counter() - before, time.process_time() - cpu_before
    print(rows / seconds, 1e6 * cpu_seconds / rows, peak_mib())
    # Exit without freeing gigabytes of memory, which would take a while.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
