"""The disk tier compared with the limits of the disk, in one run; scattered rows of 224 bytes.

"ours" is the log's `gather`, "direct" the same without the page cache. "raw rows" is one `pread` per row, and "raw
chunks" reads whole chunks, both without our reader. Cold: the page cache is empty, and the files are reopened. Warm:
the same rows again, immediately afterwards. Each repeat has new keys, the same for all, which take turns going first.
Every row is checked.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import arguments, finish, machine
from benchmarks.disk.limits import RawChunks, RawRows
from benchmarks.disk.log import Ours, OursDirect, commit_vs_plain, fill_log
from benchmarks.disk.rows import NUM_WORDS, ROW_BYTES, Store, first_wrong, make_cold, may_drop_caches
from pipeline.machine.process import keep_freed_memory
from pipeline.records import I64, U32

STORES: list[type[Store]] = [Ours, OursDirect, RawRows, RawChunks]

Times = dict[tuple[str, int, str], list[float]]
"""Seconds of each read, by store, number of rows, and "cold" or "warm"."""


@dataclass(frozen=True)
class Scale:
    """Sizes of everything, in rows and chunks; a quick run only shows that it works, its speeds mean nothing."""

    num_rows: int = 4_000_000
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    committed_chunks: int = 128


QUICK = Scale(20_000, (100, 1_000), 2)


class Bench:
    """A folder for tables, one buffer for rows, and the measured times."""

    def __init__(self, folder: Path, sizes: tuple[int, ...], repeats: int, drop_everything: bool) -> None:
        self._folder, self._sizes, self._repeats, self._drop_everything = folder, sizes, repeats, drop_everything
        self._rng = np.random.default_rng(1)
        self._scratch_1W = np.empty((1, NUM_WORDS), np.uint32)
        # Page faults of fresh memory cost more than some reads, so touch the buffer once here.
        self._out_UW = np.ones((max(sizes), NUM_WORDS), np.uint32)

    def table(self, num_rows: int) -> dict[str, float]:
        """Write a table and read it in all ways. Returns our speed divided by the limit, by number of rows and heat."""
        fill_log(self._folder / "log", num_rows)
        stores = [store(self._folder, num_rows) for store in STORES]
        times = self._measure(stores, num_rows)
        report(num_rows, self._sizes, times)
        for store in stores:
            store.leave()
        return ratios(times)

    def _measure(self, stores: list[Store], num_rows: int) -> Times:
        times: Times = defaultdict(list)
        # Warm-up: compile kernels, start threads, load libraries.
        for store in stores:
            self._read(store, np.arange(self._sizes[0]))
        for _ in range(self._repeats):
            for size in self._sizes:
                at_U = self._rng.choice(num_rows, size, replace=False)
                stores.append(stores.pop(0))
                for store in stores:
                    cold, warm = self._read(store, at_U)
                    times[store.name, size, "cold"].append(cold)
                    times[store.name, size, "warm"] += warm
        return times

    def _read(self, store: Store, at_U: I64) -> tuple[float, list[float]]:
        """Seconds of a cold read and, unless they take long, of several warm ones."""
        out_UW = self._out_UW[: len(at_U)]
        make_cold(self._folder, self._drop_everything)
        store.open()
        cold = self._timed(store, at_U, out_UW)
        warm = [self._timed(store, at_U, out_UW) for _ in range(3 if cold < 1 else 1)]
        store.close()
        return cold, warm

    def _timed(self, store: Store, at_U: I64, out_UW: U32) -> float:
        out_UW[:] = 0
        start = time.perf_counter()
        store.read(at_U, out_UW)
        seconds = time.perf_counter() - start
        wrong = first_wrong(at_U, out_UW, self._scratch_1W)
        assert wrong < 0, f"{store.name}: not the row of {at_U[wrong]}"
        return seconds


def report(num_rows: int, sizes: tuple[int, ...], times: Times) -> None:
    """Print the medians, one line per store and size."""
    print(f"\nof {num_rows:,} rows ({num_rows * ROW_BYTES / 2**30:.1f} GiB): ms, rows/s")
    print(f"{'':11} {'rows':>9} {'cold':>11} {'rows/s':>11} {'warm':>11} {'rows/s':>11}")
    for size in sizes:
        for name in sorted(store.name for store in STORES):
            cold, warm = (statistics.median(times[name, size, heat]) for heat in ("cold", "warm"))
            line = f"{name:11} {size:9,} {1000 * cold:11,.1f} {size / cold:11,.0f}"
            print(f"{line} {1000 * warm:11,.1f} {size / warm:11,.0f}", flush=True)


def ratios(times: Times) -> dict[str, float]:
    """Our speed divided by the limit, which is the faster of the two raw reads."""
    medians = {case: statistics.median(seconds) for case, seconds in times.items()}
    return {
        f"raw_{size}_{heat}": min(medians[raw.name, size, heat] for raw in (RawRows, RawChunks)) / seconds
        for (name, size, heat), seconds in medians.items()
        if name == Ours.name
    }


def main() -> None:
    args = arguments("disk", __doc__ or "")
    print(machine())
    scale = QUICK if args.quick else Scale()
    args.data.mkdir(parents=True, exist_ok=True)
    # A quick run is part of the tests, so it does not drop the page cache of other processes.
    everything = not args.quick and may_drop_caches()
    print("cold: " + ("the system's drop_caches" if everything else "posix_fadvise(DONTNEED) on every file of a table"))
    # Avoid most page faults of fresh arrays. The raw limits keep every file open.
    keep_freed_memory()
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    with tempfile.TemporaryDirectory(dir=args.data, prefix="disk-") as tmp:
        repeats = 1 if args.quick else args.repeats
        committed = commit_vs_plain(Path(tmp), scale.committed_chunks, max(repeats, 2))
        bench = Bench(Path(tmp), scale.sizes, repeats, everything)
        figures = bench.table(scale.num_rows)
    finish(args, figures | {"commit_vs_plain": committed})


if __name__ == "__main__":
    main()
