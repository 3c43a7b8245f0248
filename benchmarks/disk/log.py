"""Our log in the disk benchmark: creating, filling, opening and appending."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.disk.limits import plain_writes
from benchmarks.disk.rows import CHUNK_ROWS, LAYOUT, NUM_WORDS, TABLE, Store, chunks_of, make_rows
from pipeline.commits.flush import flush
from pipeline.commits.manifest import ChunkState, Commits, Manifest
from pipeline.commits.reopen import open_log
from pipeline.kernels.tag import first_wrong_tag
from pipeline.machine.memory import aligned_empty
from pipeline.records import I64, U32
from pipeline.storage.chunks import Chunks
from pipeline.storage.disk_speed import DiskSpeed, measure
from pipeline.storage.files import Files, checksum_of
from pipeline.storage.key_map import DEVICE, place
from pipeline.storage.layout import row_keys
from pipeline.storage.log import Log, keys_file, rows_file
from pipeline.storage.places import Caps, Places
from pipeline.storage.policies import Uses
from pipeline.storage.slab import Slab

IN_CACHE = 512
"""Number of rows whose tags are checked in one call."""


@cache
def speed_of(folder: Path, direct: bool) -> DiskSpeed:
    """Speed of the disk, measured as a run does before it opens its log."""
    speed = measure(folder, direct)
    way = "direct" if direct else "cached"
    print(f"{way}: rows less than {speed.gap_bytes / 1024:,.0f} KiB apart are taken in one read")
    return speed


def make_log(path: Path) -> Log:
    """Make an empty log."""
    return Log(path, TABLE, speed_of(path.parent, False), Files())


def log_to_read(path: Path, direct: bool) -> Log:
    """Open a filled log for reading; `direct` reads bypass the page cache."""
    # Checksums are only needed to open a run, not to read rows.
    return Log(path, TABLE, speed_of(path.parent, direct), Files(), {}, direct)


def append(log: Log, at_U: I64, rows_UW: U32) -> None:
    """Append one chunk, which is durable on return."""
    log.scatter(at_U, rows_UW)


def fill_log(path: Path, num_rows: int) -> None:
    """Make a log with the rows of `make_rows` at positions 0 .. num_rows - 1."""
    log = make_log(path)
    chunk_RW = np.empty((CHUNK_ROWS, NUM_WORDS), np.uint32)
    for first in range(0, num_rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, num_rows - first)
        make_rows(first, chunk_RW[:count])
        log.scatter(np.arange(first, first + count), chunk_RW[:count])
    log.describe([num_rows])
    log.close()


class Ours(Store):
    """Our log. As in a run, it stays open with its threads and their buffers; only its files are reopened."""

    name = "ours"
    direct = False

    def __init__(self, folder: Path, num_rows: int) -> None:
        super().__init__(folder, num_rows)
        self.log = log_to_read(self.log_path, self.direct)

    def read(self, at_U: I64, out_UW: U32, cold: bool) -> None:
        self.log.gather(at_U, out_UW)

    def close(self) -> None:
        self.log._reader.forget(range(chunks_of(self.num_rows)))

    def leave(self) -> None:
        self.log.close()


class OursDirect(Ours):
    """Our log with direct reads, which bypass the page cache: never warm."""

    name = "direct"
    direct = True


def append_vs_plain(folder: Path, num_chunks: int, repeats: int) -> float:
    """Speed of `append`, chunk by chunk, divided by that of plain writes of the same files; median over repeats."""
    return _vs_plain("append", _appended, folder, num_chunks, repeats)


def commit_vs_plain(folder: Path, num_chunks: int, repeats: int) -> float:
    """Speed of a whole commit in which every row of a slab has changed, divided by the speed of plain writes of the
    same files."""
    return _vs_plain("commit", _committed, folder, num_chunks, repeats)


def _vs_plain(name: str, write: Callable[[Path, U32], float], folder: Path, num_chunks: int, repeats: int) -> float:
    rows_UW = np.empty((num_chunks * CHUNK_ROWS, NUM_WORDS), np.uint32)
    make_rows(0, rows_UW)
    ways = {name: write, "plain": _plain}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for way in sorted(ways, reverse=repeat % 2 == 1):
            os.sync()
            seconds[way].append(ways[way](folder / way, rows_UW))
            shutil.rmtree(folder / way)
    mib = num_chunks * CHUNK_ROWS * (LAYOUT.num_bytes + 8) / 2**20
    for way, values in seconds.items():
        times = ", ".join(f"{1000 * value:,.0f}" for value in values)
        print(f"{way:6} {mib / statistics.median(values):8,.0f} MiB/s in chunks, each fsynced ({times} ms)")
    return statistics.median(seconds["plain"]) / statistics.median(seconds[name])


def _appended(folder: Path, rows_UW: U32) -> float:
    log = make_log(folder)
    start = time.perf_counter()
    for first in range(0, len(rows_UW), CHUNK_ROWS):
        append(log, np.arange(first, first + CHUNK_ROWS), rows_UW[first : first + CHUNK_ROWS])
    seconds = time.perf_counter() - start
    log.close()
    return seconds


def _committed(folder: Path, rows_UW: U32) -> float:
    """Seconds of a commit: rows, their names, the file of the dense state, the manifest, all made durable."""
    folder.mkdir()
    log, chunks, commits = make_log(folder / "table.zarr"), Chunks(CHUNK_ROWS), Commits(folder, Files(), 2)
    commits.files.make_folder(commits.folder)
    device, host = Slab(len(rows_UW), NUM_WORDS), Slab(0, NUM_WORDS)
    places = Places(len(rows_UW), 0, ("clock", "clock"), Caps(1 << 20, 1 << 34), chunks)
    keys_U = row_keys(rows_UW)
    slots = places.device.take(keys_U, Uses.none(len(keys_U)))
    places.map.insert(keys_U, place(DEVICE, slots))
    device.scatter(slots, rows_UW)
    chunk_RW = aligned_empty((CHUNK_ROWS, NUM_WORDS), np.uint32)
    start = time.perf_counter()
    flush(places, device, host, log, chunk_RW)
    log.sync()
    dense = commits.write_dense(1, {"weight": np.zeros(1 << 16, np.float32)})
    states = tuple(ChunkState(c, chunks.stale(c), *log.checksums[c]) for c in chunks.live().tolist())
    commits.publish(
        Manifest(1, None, 1, chunks.tails, len(keys_U), LAYOUT.describe(), CHUNK_ROWS, states, {}, (dense,), {})
    )
    seconds = time.perf_counter() - start
    log.close()
    return seconds


def rebuild_seconds(folder: Path, num_chunks: int) -> float:
    """Seconds per million keys to open a log: read the column of keys, check it, insert every key into the map."""
    num_rows = num_chunks * CHUNK_ROWS
    fill_log(folder / "log", num_rows)
    files = [(checksum_of(rows_file(folder / "log", c)), checksum_of(keys_file(folder / "log", c)))
             for c in range(num_chunks)]  # fmt: skip
    states = tuple(ChunkState(c, 0, *sums) for c, sums in enumerate(files))
    manifest = Manifest(1, None, 1, (num_rows,), num_rows, LAYOUT.describe(), CHUNK_ROWS, states, {}, ("",), {})
    places = Places(0, 0, ("clock", "clock"), Caps(1 << 20, 1 << 36), Chunks(CHUNK_ROWS))
    start = time.perf_counter()
    open_log(folder / "log", LAYOUT, places, [manifest], speed_of(folder, False), Files()).close()
    seconds = time.perf_counter() - start
    shutil.rmtree(folder / "log")
    print(f"opening: {1e6 * seconds / num_rows:.2f} s per million keys, {num_rows:,} keys")
    return 1e6 * seconds / num_rows


def tag_cost(log: Log, num_rows: int, wanted: int, repeats: int) -> float:
    """CPU seconds of checking tags divided by CPU seconds of reading `wanted` scattered rows from memory, including the
    check. From disk a row takes longer, but the check does not."""
    rng, out_UW = np.random.default_rng(2), np.ones((wanted, NUM_WORDS), np.uint32)
    reading, checking = [], []
    for _ in range(repeats + 1):
        at_U = rng.choice(num_rows, wanted, replace=False)
        log.gather(at_U, out_UW)
        start = time.process_time()
        log.gather(at_U, out_UW)
        reading.append(time.process_time() - start)
        start = time.process_time()
        # The reader also checks a row while it is in the CPU cache.
        for _ in range(-(-wanted // IN_CACHE)):
            first_wrong_tag(out_UW[:IN_CACHE])
        checking.append(time.process_time() - start)
    cost = statistics.median(checking[1:]) / statistics.median(reading[1:])
    print(f"tags: {1e9 * statistics.median(checking[1:]) / wanted:.1f} ns a row, {cost:.1%} of a read from memory")
    return cost


def _plain(folder: Path, rows_UW: U32) -> float:
    keys_U = row_keys(rows_UW)
    parts = [slice(c * CHUNK_ROWS, (c + 1) * CHUNK_ROWS) for c in range(chunks_of(len(rows_UW)))]
    return plain_writes(folder, [(rows_UW[part], keys_U[part]) for part in parts])
