"""Lookups of our page table, LMDB and RocksDB: key to weights, with the same memory, which is less than the table.

Ours and RocksDB read past the system's page cache into a cache of `memory` (RocksDB's index is in RAM besides). LMDB
has no cache but the system's: whenever it has mapped twice `memory`, its pages are dropped, so on average it has as
much. Peers have their best settings of `benchmarks.disk`. Values are checked.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.disk.rows import THREADS
from benchmarks.serve.servables import Table, parts_of
from pipeline.records import F32, U64
from pipeline.serving.page_table import PageTable
from pipeline.serving.pages import PageFormat
from pipeline.serving.servable import ROWS_FOLDER, open_files

THREADS_OF_PEERS = (1, 16)
"""Numbers of threads of the peers; the better one counts."""
KEYS = 2_000
"""Keys of a call, as many as a request has."""
HOT_SHARE, HOT_KEYS = 0.95, 0.001
"""Skewed keys: 95 % are from 0.1 % of the table, which are scattered over about 5 % of its pages."""


class Lookup(Protocol):
    """A store of weights by key."""

    def look_up(self, keys_P: U64, weights_PC: F32) -> object: ...

    def close(self) -> None: ...


class Lmdb:
    """LMDB: `getmulti` of sorted keys."""

    def __init__(self, folder: Path, form: PageFormat, num_keys: int, memory_bytes: int, threads: int) -> None:
        self._path, self._memory, self._num_threads = folder / "lmdb", memory_bytes, threads
        self._record = np.dtype([("key", "V8"), ("weights", np.float32, form.num_weights)])
        self._num_bytes = 4 * form.num_weights
        if not self._path.exists():
            self._fill(form, num_keys)
        self._drop()
        self._base = mapped_bytes()

    def _fill(self, form: PageFormat, num_keys: int) -> None:
        import lmdb

        room = 4 * num_keys * form.row_bytes + (64 << 20)
        with lmdb.open(str(self._path), map_size=room, max_dbs=1, writemap=True, sync=False) as env:
            table = env.open_db(key=b"rows", dupsort=True, dupfixed=True)
            with env.begin(write=True) as transaction:
                cursor = transaction.cursor(table)
                for keys_N, weights_NC in parts_of(form, num_keys):
                    values = weights_NC.reshape(-1).view(f"V{self._num_bytes}").tolist()
                    cursor.putmulti(zip(as_keys(keys_N), values, strict=True), append=True)
            env.sync(True)

    def _open(self) -> None:
        import lmdb

        self._env = lmdb.open(str(self._path), readonly=True, lock=False, max_dbs=1, readahead=False)
        self._table = self._env.open_db(key=b"rows", dupsort=True, dupfixed=True, create=False)

    def _drop(self) -> None:
        if hasattr(self, "_env"):
            self._env.close()
        file = os.open(self._path / "data.mdb", os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
        self._open()

    def make_room(self) -> None:
        """Drop the pages if there are too many; this is not timed."""
        if mapped_bytes() - self._base > 2 * self._memory:
            self._drop()

    def look_up(self, keys_P: U64, weights_PC: F32) -> None:
        def read_part(part_N: Any) -> None:
            with self._env.begin(self._table, buffers=True) as transaction:
                found = transaction.cursor(self._table).getmulti(
                    as_keys(keys_P[part_N]), dupdata=True, dupfixed_bytes=self._num_bytes, keyfixed=True
                )
                weights_PC[part_N] = np.frombuffer(found, self._record)["weights"]

        parts = np.array_split(np.argsort(keys_P), self._num_threads)
        list(THREADS.map(read_part, parts)) if self._num_threads > 1 else read_part(parts[0])

    def close(self) -> None:
        self._env.close()


class RocksDb:
    """RocksDB: `get` of lists of sorted keys; blocks of 4 KiB, no compression, direct reads."""

    def __init__(self, folder: Path, form: PageFormat, num_keys: int, memory_bytes: int, threads: int) -> None:
        import rocksdict

        self._path, self._num_threads = folder / "rocksdb", threads
        self._num_weights = form.num_weights
        options = self._options(memory_bytes)
        if not self._path.exists():
            self._fill(form, num_keys, options)
        self._table = rocksdict.Rdict(str(self._path), options, access_type=rocksdict.AccessType.read_only())

    def _options(self, memory_bytes: int) -> Any:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_use_direct_reads(True)
        options.set_max_open_files(-1)
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_size(4096)
        blocks.set_block_cache(rocksdict.Cache(memory_bytes))
        options.set_block_based_table_factory(blocks)
        return options

    def _fill(self, form: PageFormat, num_keys: int, options: Any) -> None:
        import rocksdict

        files = []
        for part, (keys_N, weights_NC) in enumerate(parts_of(form, num_keys)):
            files.append(f"{self._path}-{part}.sst")
            writer = rocksdict.SstFileWriter(options)
            writer.open(files[-1])
            values = weights_NC.reshape(-1).view(f"V{4 * form.num_weights}").tolist()
            for key, value in zip(as_keys(keys_N), values, strict=True):
                writer[key] = value
            writer.finish()
        moved = rocksdict.IngestExternalFileOptions()
        moved.set_move_files(True)
        table = rocksdict.Rdict(str(self._path), options)
        table.ingest_external_file(files, moved)
        table.close()

    def look_up(self, keys_P: U64, weights_PC: F32) -> None:
        def read_part(part_N: Any) -> None:
            rows = b"".join(self._table.get(as_keys(keys_P[part_N])))
            weights_PC[part_N] = np.frombuffer(rows, np.float32).reshape(-1, self._num_weights)

        parts = np.array_split(np.argsort(keys_P), self._num_threads)
        list(THREADS.map(read_part, parts)) if self._num_threads > 1 else read_part(parts[0])

    def close(self) -> None:
        self._table.close()


def as_keys(keys_N: U64) -> list[bytes]:
    """Keys of 8 bytes, big-endian, so that they sort as the numbers do."""
    found: list[bytes] = keys_N.astype(">u8").view("V8").tolist()
    return found


def mapped_bytes() -> int:
    """Bytes of files that this process has mapped and that are in RAM."""
    found = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10


def lookups(table: Table, memory_bytes: int, calls: int) -> dict[str, float]:
    """Look up the same keys in all stores, in turn, and print keys per second. Peers have one thread, then 16."""
    opened = open_files(table.folder)
    form, num_keys = opened.page_format, table.num_keys
    share = memory_bytes / (len(opened.fences_N) * form.page_bytes)
    print(
        f"\nlookups of {KEYS:,} keys among {num_keys:,}, memory for {share:.0%} of the pages; medians of {calls} calls"
    )
    peers = {"lmdb": ("lmdb", Lmdb), "rocksdb": ("rocksdict", RocksDb)}
    for name in [name for name, (package, _) in peers.items() if find_spec(package) is None]:
        print(f"{name} is left out, since {peers.pop(name)[0]} is not installed: pip install '.[bench]'")
    ratios: dict[str, float] = {}
    for threads in THREADS_OF_PEERS:
        parts = len(opened.manifest.parts)
        stores: dict[str, Lookup] = {
            "ours": PageTable(table.folder / ROWS_FOLDER, parts, opened.fences_N, form, memory_bytes)
        }
        for name, (_, kind) in peers.items():
            begun = time.perf_counter()
            stores[name] = kind(table.folder.parent, form, num_keys, memory_bytes, threads)
            print(f"{name} with {threads} thread(s): opened in {time.perf_counter() - begun:,.1f} s", flush=True)
        for distribution in ("even", "skewed"):
            times = measure(stores, table, distribution, calls, form)
            rates = {name: KEYS / statistics.median(seconds[calls // 4 :]) for name, seconds in times.items()}
            for name, rate in rates.items():
                p99 = 1000 * np.quantile(times[name][calls // 4 :], 0.99)
                of_ours = f"{rate / rates['ours']:6.3f} of ours"
                print(f"   {distribution:6} {name:8} {rate:12,.0f} keys/s   p99 {p99:8.1f} ms   {of_ours}", flush=True)
                key = f"lookups_{distribution}_vs_{name}"
                if name != "ours":
                    ratios[key] = min(ratios.get(key, np.inf), rates["ours"] / rate)
        for store in stores.values():
            store.close()
    return ratios


def measure(
    stores: dict[str, Lookup], table: Table, distribution: str, calls: int, form: PageFormat
) -> dict[str, list[float]]:
    """Seconds of each call, by store. Each call has other keys, the same for all stores, which take turns in going
    first."""
    rng, times = np.random.default_rng(0), defaultdict(list)
    hot_N = rng.choice(table.keys_N, max(KEYS, int(HOT_KEYS * len(table.keys_N))), replace=False)
    names = list(stores)
    for _ in range(calls):
        keys_P = rng.choice(table.keys_N, KEYS)
        if distribution == "skewed":
            skewed_P = rng.random(KEYS) < HOT_SHARE
            keys_P[skewed_P] = rng.choice(hot_N, int(skewed_P.sum()))
        keys_P, names = rng.permutation(np.unique(keys_P)), names[1:] + names[:1]
        found: dict[str, F32] = {}
        for name in names:
            if isinstance(store := stores[name], Lmdb):
                store.make_room()
            found[name] = np.zeros((len(keys_P), form.num_weights), np.float32)
            begun = time.perf_counter()
            store.look_up(keys_P, found[name])
            times[name].append((time.perf_counter() - begun) * KEYS / len(keys_P))
        assert all((weights == found["ours"]).all() for weights in found.values())
    return times
