"""The disk tier compared with other stores and with the limits of the disk, in one run; scattered rows of 224 bytes.

"ours" is the log's `gather`, "direct" the same without the page cache. Zarr, TensorStore, LMDB and RocksDB hold the
same rows, the first two in the same files. "raw rows" is one `pread` per row, and "raw chunks" reads whole chunks, both
without our reader. Cold: the page cache and the store's caches are empty, and the store is reopened. Warm: the same
rows again, immediately afterwards. Each repeat has new keys, the same for all stores, which take turns going first.
Every row is checked. `--large-rows N`: rows of the large table (default: 40 M).
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import arguments, finish, machine
from benchmarks.disk.limits import RawChunks, RawRows
from benchmarks.disk.log import Ours, OursDirect, append_vs_plain, commit_vs_plain, fill_log, rebuild_seconds, tag_cost
from benchmarks.disk.peers import RocksDb, peers_at_hand
from benchmarks.disk.rows import NUM_WORDS, ROW_BYTES, Store, first_wrong, make_cold, may_drop_caches
from pipeline.machine.allocator import keep_freed_memory
from pipeline.records import I64, U32

OWN: list[type[Store]] = [Ours, OursDirect, RawRows, RawChunks]
SLOW = 30.0
"""A store whose cold read takes more seconds than this is not measured again with that number of rows."""
DENSE = 100
"""If at least one row in this many is wanted, other stores read ahead, if they have such a setting."""

Times = dict[tuple[str, int, str], list[float]]
"""Seconds of each read, by store, number of rows, and "cold" or "warm"."""


@dataclass(frozen=True)
class Scale:
    """Sizes of everything, in rows and chunks; a quick run only shows that it works, its speeds mean nothing."""

    large_rows: int
    small_rows: int = 4_000_000
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    appended_chunks: int = 128


QUICK = Scale(50_000, 20_000, (100, 1_000), 2)


class Bench:
    """A folder for tables, one buffer for rows, and the measured times."""

    def __init__(self, folder: Path, sizes: tuple[int, ...], repeats: int, drop_everything: bool) -> None:
        self._folder, self._sizes, self._repeats, self._drop_everything = folder, sizes, repeats, drop_everything
        self._rng = np.random.default_rng(1)
        self._scratch_1W = np.empty((1, NUM_WORDS), np.uint32)
        # Page faults of fresh memory cost more than some reads, so touch the buffer once here.
        self._out_UW = np.ones((max(sizes), NUM_WORDS), np.uint32)
        self.ratios: dict[str, float] = {}

    def table(self, num_rows: int, groups: list[list[type[Store]]], suffix: str) -> None:
        """Load a table into the stores and read it, group by group; a group's files, except the log, are deleted before
        the next group."""
        folder = self._folder / f"rows-{num_rows}"
        folder.mkdir()
        _timed_fill("log", num_rows, lambda: fill_log(folder / "log", num_rows))
        for group in groups:
            before = set(folder.iterdir())
            stores = [store(folder, num_rows) for store in group]
            for store in stores:
                if type(store).fill is not Store.fill:
                    _timed_fill(store.name, num_rows, store.fill)
            times = self._measure(stores, num_rows)
            report(num_rows, self._sizes, stores, times)
            self.ratios |= ratios(times, suffix)
            if "tag_cost" not in self.ratios:
                ours = next(store for store in stores if type(store) is Ours)
                self.ratios["tag_cost"] = tag_cost(ours.log, num_rows, self._sizes[-2], self._repeats)
            for store in stores:
                store.leave()
            for loaded in set(folder.iterdir()) - before:
                shutil.rmtree(loaded)
        shutil.rmtree(folder)

    def _measure(self, stores: list[Store], num_rows: int) -> Times:
        times: Times = defaultdict(list)
        # Warm-up: compile kernels, start threads, load libraries.
        for store in stores:
            self._read(store, np.arange(self._sizes[0]), num_rows)
        for _ in range(self._repeats):
            for size in self._sizes:
                at_U = self._rng.choice(num_rows, size, replace=False)
                stores.append(stores.pop(0))
                for store in stores:
                    if max(times[store.name, size, "cold"], default=0.0) < SLOW:
                        cold, warm = self._read(store, at_U, num_rows)
                        times[store.name, size, "cold"].append(cold)
                        times[store.name, size, "warm"] += warm
        return times

    def _read(self, store: Store, at_U: I64, num_rows: int) -> tuple[float, list[float]]:
        """Seconds of a cold read and, unless they take long, of several warm ones."""
        out_UW = self._out_UW[: len(at_U)]
        make_cold(self._folder, self._drop_everything)
        store.open(dense=len(at_U) * DENSE >= num_rows)
        cold = self._timed(store, at_U, out_UW, True)
        warm = [self._timed(store, at_U, out_UW, False) for _ in range(3 if cold < 1 else 1)]
        store.close()
        return cold, warm

    def _timed(self, store: Store, at_U: I64, out_UW: U32, cold: bool) -> float:
        out_UW[:] = 0
        start = time.perf_counter()
        store.read(at_U, out_UW, cold)
        seconds = time.perf_counter() - start
        wrong = first_wrong(at_U, out_UW, self._scratch_1W)
        assert wrong < 0, f"{store.name}: not the row of {at_U[wrong]}"
        return seconds


def _timed_fill(name: str, num_rows: int, fill: Callable[[], None]) -> None:
    start = time.perf_counter()
    fill()
    print(f"{name}: {num_rows:,} rows loaded in {time.perf_counter() - start:,.1f} s", flush=True)


def report(num_rows: int, sizes: tuple[int, ...], stores: list[Store], times: Times) -> None:
    """Print the medians of the group, one line per store and size."""
    print(f"\nof {num_rows:,} rows ({num_rows * ROW_BYTES / 2**30:.1f} GiB): ms [least .. most], rows/s")
    print(f"{'':11} {'rows':>9} {'cold':>11} {'':18} {'rows/s':>11} {'warm':>11} {'rows/s':>11}")
    for size in sizes:
        for name in sorted(store.name for store in stores):
            cold, warm = times[name, size, "cold"], times[name, size, "warm"]
            m, w = statistics.median(cold), statistics.median(warm)
            extremes = f"[{1000 * min(cold):,.0f} .. {1000 * max(cold):,.0f}]"
            line = f"{name:11} {size:9,} {1000 * m:11,.1f} {extremes:18} {size / m:11,.0f}"
            print(f"{line} {1000 * w:11,.1f} {size / w:11,.0f}{'  slow: seldom' * (max(cold) > SLOW)}", flush=True)


def ratios(times: Times, suffix: str) -> dict[str, float]:
    """Our speed divided by theirs; the raw limit is the faster of the two raw reads."""
    medians = {case: statistics.median(seconds) for case, seconds in times.items()}
    found: dict[str, float] = {}
    for (name, size, heat), seconds in medians.items():
        if name != Ours.name:
            key = f"{name.split()[0]}_{size}_{heat}{suffix}"
            found[key] = min(found.get(key, float("inf")), seconds / medians[Ours.name, size, heat])
    return found


def run(bench: Bench, scale: Scale, peers: list[type[Store]]) -> None:
    """Measure the small table in all stores at once; the large one in LMDB, then in RocksDB, each together with our log
    and the stores that read its files. Three copies at once would need 50 % more space."""
    bench.table(scale.small_rows, [OWN + peers], "")
    large = [OWN + [peer for peer in peers if peer is not RocksDb]] + [[Ours, RocksDb]] * (RocksDb in peers)
    millions = scale.large_rows / 1e6
    bench.table(scale.large_rows, large, f"_of_{millions:.0f}m" if millions >= 1 else f"_of_{1000 * millions:.0f}k")


def check_space(folder: Path, num_rows: int) -> None:
    needed, free = int(2.5 * num_rows * ROW_BYTES), shutil.disk_usage(folder).free
    if needed > free:
        gib = f"{needed / 2**30:.1f} GiB in {folder}, where {free / 2**30:.1f} are free"
        raise SystemExit(f"{num_rows:,} rows need {gib}: choose another --data or fewer --large-rows")


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--large-rows", type=int, default=40_000_000)
    own, sys.argv[1:] = parser.parse_known_args()
    args = arguments("disk", __doc__ or "")
    print(machine())
    peers = peers_at_hand(args.quick)
    scale = QUICK if args.quick else Scale(own.large_rows)
    args.data.mkdir(parents=True, exist_ok=True)
    check_space(args.data, scale.large_rows)
    # A quick run is part of the tests, so it does not drop the page cache of other processes.
    everything = not args.quick and may_drop_caches()
    print("cold: " + ("the system's drop_caches" if everything else "posix_fadvise(DONTNEED) on every file of a table"))
    # Avoid most page faults of stores that return fresh arrays. The raw limits keep every file open.
    keep_freed_memory()
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    with tempfile.TemporaryDirectory(dir=args.data, prefix="disk-") as tmp:
        repeats = 1 if args.quick else args.repeats
        bench = Bench(Path(tmp), scale.sizes, repeats, everything)
        bench.ratios["append_vs_plain"] = append_vs_plain(Path(tmp), scale.appended_chunks, max(repeats, 2))
        bench.ratios["commit_vs_plain"] = commit_vs_plain(Path(tmp), scale.appended_chunks, max(repeats, 2))
        bench.ratios["rebuild_seconds_per_million"] = rebuild_seconds(Path(tmp), 4 * scale.appended_chunks)
        run(bench, scale, peers)
    finish(args, bench.ratios)


if __name__ == "__main__":
    main()
