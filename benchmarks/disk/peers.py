"""Stores with which the log is compared, each with the best settings that we found; figures are given at the settings.

Zarr and TensorStore read the log's files. LMDB and RocksDB hold the same rows under big-endian positions. A store has
several threads if that makes it faster; all bindings release the GIL while they wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.disk.rows import CHUNK_ROWS, NUM_WORDS, ROW_BYTES, THREADS, Store, chunk_of, chunks_of
from pipeline.records import I64, U32

SST_CHUNKS = 64
BLOCK_CACHE_BYTES = 6 << 30
"""Size of RocksDB's block cache: more than the blocks that any read touches, so that a warm read finds all of them."""


def as_keys(at_U: I64) -> list[bytes]:
    """Positions as 8-byte keys, big-endian, so that they sort like the numbers."""
    return at_U.astype(">u8").view("V8").tolist()


def in_parts(at_U: I64, num_threads: int, read_part: Callable[[I64], None]) -> None:
    """Divide the indices of `at_U`, sorted by position, among threads, and call `read_part` with each part."""
    parts_N = np.array_split(np.argsort(at_U), num_threads)
    if num_threads == 1:
        read_part(parts_N[0])
    else:
        list(THREADS.map(read_part, (part_N for part_N in parts_N if len(part_N))))


class Zarr(Store):
    """Zarr's `oindex` with the default settings; 64 reads in flight instead of 10 made no difference."""

    name = "zarr"

    def open(self, dense: bool) -> None:
        import zarr

        self._rows = zarr.open_group(self.log_path, mode="r")["rows"]

    def read(self, at_U: I64, out_UW: U32, cold: bool) -> None:
        out_UW[:] = self._rows.oindex[at_U]


class TensorStore(Store):
    """TensorStore: all rows in one indexed read, without a cache. Writing into our buffer, or 64 files at once, was not
    faster."""

    name = "tensorstore"
    package = "tensorstore"

    def open(self, dense: bool) -> None:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{self.log_path.absolute()}/rows/"}}
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
        self._rows = tensorstore.open(spec, context=context, read=True).result()

    def read(self, at_U: I64, out_UW: U32, cold: bool) -> None:
        out_UW[:] = self._rows[at_U].read().result()

    def close(self) -> None:
        del self._rows


class KeyValue(Store):
    """Store with separate files, filled in key order."""

    def _chunks(self) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        for c in range(chunks_of(self.num_rows)):
            rows_RW = chunk_of(self.log_path, c, self.num_rows)
            keys = as_keys(np.arange(c * CHUNK_ROWS, c * CHUNK_ROWS + len(rows_RW)))
            yield zip(keys, rows_RW.reshape(-1).view(f"V{ROW_BYTES}").tolist(), strict=True)


class Lmdb(KeyValue):
    """LMDB: `getmulti` of sorted keys into one buffer, which requires a table of duplicates of fixed size. Cold, 10,000
    rows: 700 ms with one thread, 200 with 16, more with 64; warm 18 ms with one, 35 with 16. The system's read-ahead
    makes a cold read three times as slow, but twice as fast if one row in 40 is wanted."""

    name = "lmdb"
    package = "lmdb"
    kind = {"key": b"rows", "dupsort": True, "dupfixed": True}  # noqa: RUF012
    record = np.dtype([("key", "V8"), ("row", np.uint32, NUM_WORDS)])

    def fill(self) -> None:
        import lmdb

        path, size = str(self.folder / "lmdb"), 2 * ROW_BYTES * self.num_rows + (64 << 20)
        with lmdb.open(path, map_size=size, max_dbs=1, writemap=True, sync=False) as env:
            table = env.open_db(**self.kind)
            with env.begin(write=True) as transaction:
                cursor = transaction.cursor(table)
                for pairs in self._chunks():
                    cursor.putmulti(pairs, append=True)
            env.sync(True)

    def open(self, dense: bool) -> None:
        import lmdb

        self._env = lmdb.open(str(self.folder / "lmdb"), readonly=True, lock=False, max_dbs=1, readahead=dense)
        self._table = self._env.open_db(**self.kind, create=False)

    def read(self, at_U: I64, out_UW: U32, cold: bool) -> None:
        def read_part(part_N: I64) -> None:
            with self._env.begin(self._table, buffers=True) as transaction:
                found = transaction.cursor(self._table).getmulti(
                    as_keys(at_U[part_N]), dupdata=True, dupfixed_bytes=ROW_BYTES, keyfixed=True
                )
                out_UW[part_N] = np.frombuffer(found, self.record)["row"]

        in_parts(at_U, 16 if cold else 1, read_part)

    def close(self) -> None:
        self._env.close()


class RocksDb(KeyValue):
    """RocksDB: `get` of a list of sorted keys (MultiGet). No compression, blocks of 4 KiB, tables in one sorted level,
    a block cache that holds all that is read. Cold, 10,000 rows: 600 ms with one thread, 200 with 16, 160 with 64; the
    read-ahead has the same effect as with LMDB."""

    name = "rocksdb"
    package = "rocksdict"

    def _options(self, dense: bool) -> Any:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_advise_random_on_open(not dense)
        options.set_max_open_files(-1)
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_size(4096)
        blocks.set_block_cache(rocksdict.Cache(BLOCK_CACHE_BYTES))
        options.set_block_based_table_factory(blocks)
        return options

    def fill(self) -> None:
        import rocksdict

        options, files, chunks = self._options(False), [], self._chunks()
        for c, pairs in enumerate(chunks):
            if c % SST_CHUNKS == 0:
                files.append(str(self.folder / f"{c}.sst"))
                writer = rocksdict.SstFileWriter(options)
                writer.open(files[-1])
            for key, row in pairs:
                writer[key] = row
            if c % SST_CHUNKS == SST_CHUNKS - 1 or c == chunks_of(self.num_rows) - 1:
                writer.finish()
        moved = rocksdict.IngestExternalFileOptions()
        moved.set_move_files(True)
        table = rocksdict.Rdict(str(self.folder / "rocksdb"), options)
        table.ingest_external_file(files, moved)
        table.close()

    def open(self, dense: bool) -> None:
        import rocksdict

        read_only = rocksdict.AccessType.read_only()
        self._table = rocksdict.Rdict(str(self.folder / "rocksdb"), self._options(dense), access_type=read_only)

    def read(self, at_U: I64, out_UW: U32, cold: bool) -> None:
        def read_part(part_N: I64) -> None:
            rows = b"".join(self._table.get(as_keys(at_U[part_N])))
            out_UW[part_N] = np.frombuffer(rows, np.uint32).reshape(-1, NUM_WORDS)

        in_parts(at_U, 64 if cold else 16, read_part)

    def close(self) -> None:
        self._table.close()


def peers_at_hand(quick: bool) -> list[type[Store]]:
    """Stores that are installed; a full run needs all of them."""
    peers: list[type[Store]] = [Zarr, TensorStore, Lmdb, RocksDb]
    missing = [peer.package for peer in peers if find_spec(peer.package) is None]
    if missing and not quick:
        raise SystemExit(f"not installed: {', '.join(missing)}; pip install '.[bench]'")
    at_hand = [peer for peer in peers if peer.package not in missing]
    print("peers: " + ", ".join(f"{peer.package} {version(peer.package)}" for peer in at_hand))
    if missing:
        print(f"left out, since not installed: {', '.join(missing)}")
    return at_hand
