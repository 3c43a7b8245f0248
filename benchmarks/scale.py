"""Speed, memory and commits with tables of 2 M, 20 M and 200 M keys, at the same hit rates and the same caps.

Nothing of a step should grow with the table but the key map in RAM (11.5 to 12.7 bytes per key from 7 M keys on) and
the log on disk. So the rows are small, the dense part is tiny, and every batch draws four fifths of its values from the
same number of hot keys, which device and host hold, and the others evenly from all keys, most of which are on disk.

    python -m benchmarks.scale [--keys 2000000 20000000 200000000] [--repeats 3] [--plot FILE.svg]

Tables are written directly, each key with its first row, and committed. Sizes take turns. "warm": the page cache holds
the log, as far as it fits; "cold": its pages are dropped all the time. The last line is JSON: `map_bytes_per_key` of
the largest table, the ratio of the speeds of the two largest, with a warm and a cold log (`speed_200m_vs_20m` and
`speed_200m_vs_20m_cold` at full size), and of the largest table `longest_plan_ms` of a block and `plan_vs_train`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import arguments, finish, machine
from benchmarks.table import Stretches, drop_log_pages, fill_log, warm_log_pages
from pipeline.cluster.local import local_client
from pipeline.device.gpu import choose
from pipeline.machine.memory import keep_freed_memory
from pipeline.models import DeepFM
from pipeline.optimizer import Optimizer, RowWiseAdagrad
from pipeline.preflight.setup import set_up
from pipeline.storage.key_map import bytes_for
from pipeline.storage.reader import allow_many_files
from pipeline.verify import verify
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Workflow

FIELDS, DIM, BATCH, BLOCK_BATCHES = 10, 8, 4096, 16
HOT_SHARE = 0.8
ROW_BYTES = 48
SPARE_DISK = 1.3
"""Disk that must be free, relative to the bytes of all rows."""


class Table:
    """A run over a table of `num_keys` keys, which is on disk and committed before it starts."""

    def __init__(self, num_keys: int, hot: int, blocks: int, folder: Path, client: object) -> None:
        self.num_keys, self._folder, self._client = num_keys, folder, client
        self.workflow = workflow_of(num_keys, hot, folder)
        make_data(folder / "data", num_keys, hot, blocks * BLOCK_BATCHES * BATCH)
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.hits: list[float] = []
        run_dir = folder / "run"
        run_dir.mkdir()
        stretches = self._open(run_dir)
        fill_log(stretches.worker, (num_keys // FIELDS,) * FIELDS)
        stretches.driver._commit(next(iter(stretches.driver.agenda.blocks(1))), [])
        stretches.worker.close()
        self.opening = time.perf_counter()
        self.stretches = self._open(run_dir)
        self.opening = time.perf_counter() - self.opening
        places = self.stretches.worker.tiers.places
        self.map_bytes_per_key = places.map.num_bytes / len(places.map)

    def _open(self, run_dir: Path) -> Stretches:
        setup, source = set_up(self.workflow, choose("cpu"), lambda text: None)
        return Stretches(setup, source, run_dir, self._client)

    def measure(self, name: str, blocks: int) -> None:
        log_path, before = self.stretches.worker.tiers.log.path, self.stretches.disk_rows_read
        if name == "warm":
            warm_log_pages(log_path)
        with drop_log_pages(log_path) if name == "cold" else contextlib.nullcontext():
            rate, spans = self.stretches.run(blocks)
        self.rates[name].append(rate)
        self.hits.append((self.stretches.disk_rows_read - before) / (blocks * BLOCK_BATCHES * BATCH))
        for stage in ("plan", "train"):
            self.seconds[stage] += [span.stop - span.start for span in spans if span.stage == stage]

    def commit(self) -> float:
        """Take a commit; return its seconds per million changed rows."""
        totals = self.stretches.driver.committer.totals
        before, changed = totals.commit_seconds, totals.rows_changed
        self.stretches.driver._commit(next(iter(self.stretches.driver.agenda.blocks(1))), [])
        return 1e6 * (totals.commit_seconds - before) / max(1, totals.rows_changed - changed)

    def verify(self) -> float:
        """Verify all commits; return the seconds per million rows."""
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert verify(self._folder / "run") == 0, "the table is damaged"
        return 1e6 * (time.perf_counter() - start) / self.num_keys


def workflow_of(num_keys: int, hot: int, folder: Path) -> Workflow:
    ring = 16 * BATCH * FIELDS
    return Workflow(
        name="scale",
        data=Data(
            root=folder / "data",
            train=("train.parquet",),
            labels=("label",),
            categories=tuple(Category(name=f"c{f}") for f in range(FIELDS)),
        ),
        model=Model(kind=DeepFM, embedding_dim=DIM, args={"hidden": (8,)}),
        optimizer=Optimizer(rows=RowWiseAdagrad(storage="bfloat16")),
        storage=Storage(
            device=(hot + 2 * ring) * ROW_BYTES,
            host=(hot // 4 + 2 * ring) * ROW_BYTES,
            disk=4 * num_keys * ROW_BYTES + (4 << 30),
            map=int(1.1 * bytes_for(num_keys)) + (64 << 20),
            read="1 GiB",
        ),
        device="cpu",
        schedule=Schedule(batch_size=BATCH, epochs=1000, block_batches=BLOCK_BATCHES),
    )


def make_data(folder: Path, num_keys: int, hot: int, examples: int) -> None:
    """Write examples whose columns have values 0 .. num_keys / FIELDS - 1, most of them below hot / FIELDS."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    is_hot = rng.random((FIELDS, examples)) < HOT_SHARE
    values = np.where(
        is_hot, rng.integers(0, hot // FIELDS, is_hot.shape), rng.integers(0, num_keys // FIELDS, is_hot.shape)
    )
    columns = {"label": pa.array(rng.integers(0, 2, examples), pa.int8())}
    columns |= {f"c{f}": values[f] for f in range(FIELDS)}
    pq.write_table(pa.table(columns), folder / "train.parquet", row_group_size=1 << 16)


def picture(tables: list[Table]) -> str:
    """SVG: examples per second against the number of keys, a line for a warm log and one for a cold one."""
    most = max(rate for table in tables for rates in table.rates.values() for rate in rates)
    width, height, left, low = 480, 300, 80, 250
    at_x = [left + 360 * n // max(1, len(tables) - 1) for n in range(len(tables))]
    style = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"'
    parts = [f'<svg {style} width="{width}" height="{height}">']
    for share in (0, 0.5, 1):
        y = low - 200 * share
        parts.append(
            f'<path d="M{left} {y}H{width - 30}" stroke="#ccc"/><text x="4" y="{y + 4}">{most * share:,.0f}</text>'
        )
    for name, color, label_y in (("warm", "#06c", 20), ("cold", "#c60", 36)):
        at_y = [low - 200 * statistics.median(table.rates[name]) / most for table in tables]
        points = " ".join(f"{x},{y:.1f}" for x, y in zip(at_x, at_y, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 10}" y="{label_y}" fill="{color}">examples/s, {name} log</text>')
    for x, table in zip(at_x, tables, strict=True):
        parts.append(f'<text x="{x - 20}" y="{low + 20}">{table.num_keys / 1e6:g} M</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def report(tables: list[Table], blocks: int) -> None:
    print(
        f"\n{'keys':>13}{'warm ex/s':>12}{'cold ex/s':>12}{'disk rows/ex':>14}{'map B/key':>11}{'plan ms':>9}"
        f"{'longest':>9}{'train ms':>10}{'open s/M':>10}{'commit s/M':>12}{'verify s/M':>12}"
    )
    for table in tables:
        plan, train = (1000 * statistics.median(table.seconds[stage]) for stage in ("plan", "train"))
        print(
            f"{table.num_keys:13,}{statistics.median(table.rates['warm']):12,.0f}"
            f"{statistics.median(table.rates['cold']):12,.0f}{statistics.median(table.hits):14.2f}"
            f"{table.map_bytes_per_key:11.2f}{plan:9.1f}{1000 * max(table.seconds['plan']):9.1f}{train:10.1f}"
            f"{1e6 * table.opening / table.num_keys:10.3f}{table.commit():12.3f}{table.verify():12.3f}",
            flush=True,
        )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, nargs="+", default=[2_000_000, 20_000_000, 200_000_000])
    parser.add_argument("--plot", type=Path, help="an SVG file")


def main() -> None:
    args = arguments("scale", __doc__ or "", options)
    print(machine())
    keep_freed_memory()
    allow_many_files()
    sizes, hot, blocks, repeats = args.keys, 400_000, 8, args.repeats
    if args.quick:
        sizes, hot, blocks, repeats = [200_000, 400_000], 20_000, 2, 1
    if (free := shutil.disk_usage(".").free) < (needed := int(SPARE_DISK * ROW_BYTES * sum(sizes)) + (1 << 30)):
        raise SystemExit(
            f"tables of {sizes} keys take {needed:,} bytes of disk, and {free:,} are free: give fewer --keys"
        )
    with ExitStack() as stack:
        tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
        client = stack.enter_context(local_client())
        tables = []
        for number, num_keys in enumerate(sizes):
            begin = time.perf_counter()
            tables.append(Table(num_keys, hot, blocks * (2 * repeats + 1), tmp / str(number), client))
            stack.callback(tables[-1].stretches.worker.close)
            print(f"{num_keys:,} keys: made and committed in {time.perf_counter() - begin:.0f} s", flush=True)
        os.sync()
        for table in tables:
            table.stretches.run(blocks)
        for _ in range(repeats):
            for name in ("warm", "cold"):
                for table in tables:
                    table.measure(name, blocks)
        report(tables, blocks)
    if args.plot:
        args.plot.write_text(picture(tables))
    last, before = tables[-1], tables[-2]
    speed = {name: statistics.median(last.rates[name]) / statistics.median(before.rates[name]) for name in last.rates}
    size, than = (f"{table.num_keys // 1_000_000}m" for table in (last, before))
    finish({
        "map_bytes_per_key": last.map_bytes_per_key,
        f"speed_{size}_vs_{than}": speed["warm"],
        f"speed_{size}_vs_{than}_cold": speed["cold"],
        "longest_plan_ms": 1000 * max(last.seconds["plan"]),
        "plan_vs_train": statistics.median(last.seconds["plan"]) / statistics.median(last.seconds["train"]),
    })  # fmt: skip


if __name__ == "__main__":
    main()
