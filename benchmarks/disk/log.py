"""Our log in the disk benchmark: filling, reading and committing."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.disk.limits import plain_writes
from benchmarks.disk.rows import CHUNK_ROWS, LAYOUT, NUM_WORDS, TABLE, Store, chunks_of, make_rows
from pipeline.commits.flush import flush
from pipeline.commits.manifest import ChunkState, Commits, Manifest
from pipeline.machine.limits import aligned_empty
from pipeline.records import I64, U32
from pipeline.storage.chunks import Chunks
from pipeline.storage.disk_speed import DiskSpeed, measure
from pipeline.storage.files import Files
from pipeline.storage.key_map import DEVICE, place
from pipeline.storage.layout import row_keys
from pipeline.storage.log import Log
from pipeline.storage.places import Caps, Places
from pipeline.storage.policies import Uses
from pipeline.storage.tier import Slab


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

    def read(self, at_U: I64, out_UW: U32) -> None:
        self.log.gather(at_U, out_UW)

    def close(self) -> None:
        self.log._reader.forget(range(chunks_of(self.num_rows)))

    def leave(self) -> None:
        self.log.close()


class OursDirect(Ours):
    """Our log with direct reads, which bypass the page cache: never warm."""

    name = "direct"
    direct = True


def commit_vs_plain(folder: Path, num_chunks: int, repeats: int) -> float:
    """Speed of a whole commit in which every row of a slab has changed, divided by the speed of plain writes of the
    same files; median over repeats."""
    rows_UW = np.empty((num_chunks * CHUNK_ROWS, NUM_WORDS), np.uint32)
    make_rows(0, rows_UW)
    ways = {"commit": _committed, "plain": _plain}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats):
        for way in sorted(ways, reverse=repeat % 2 == 1):
            os.sync()
            seconds[way].append(ways[way](folder / way, rows_UW))
            shutil.rmtree(folder / way)
    mib = num_chunks * CHUNK_ROWS * (LAYOUT.num_bytes + 8) / 2**20
    for way, values in seconds.items():
        print(f"{way:6} {mib / statistics.median(values):8,.0f} MiB/s in chunks, each fsynced")
    return statistics.median(seconds["plain"]) / statistics.median(seconds["commit"])


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


def _plain(folder: Path, rows_UW: U32) -> float:
    keys_U = row_keys(rows_UW)
    parts = [slice(c * CHUNK_ROWS, (c + 1) * CHUNK_ROWS) for c in range(chunks_of(len(rows_UW)))]
    return plain_writes(folder, [(rows_UW[part], keys_U[part]) for part in parts])
