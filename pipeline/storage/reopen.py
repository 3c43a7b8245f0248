"""Opening what an earlier run left: delete what no kept commit names, and rebuild the key map from the log's keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.kernels.key_map import UNKNOWN
from pipeline.records import RESERVED
from pipeline.storage.commits import DETAILS, Manifest
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Damaged, Files
from pipeline.storage.key_map import DISK, bytes_for, place, row_of
from pipeline.storage.layout import RowLayout
from pipeline.storage.log import Log, keys_file, rows_file
from pipeline.storage.places import Places


def checksums(kept: Sequence[Manifest]) -> dict[int, tuple[str, str]]:
    """Of the files of rows and of keys of each chunk that a kept commit refers to."""
    return {c.number: (c.rows_checksum, c.keys_checksum) for manifest in kept for c in manifest.chunks}


def clean(path: Path, kept: Sequence[Manifest], files: Files) -> None:
    """Delete the files of the log that no kept commit names."""
    chunks = checksums(kept)
    if not path.is_dir():
        return
    for folder, file_of in (("rows", rows_file), ("keys", keys_file)):
        named = {"zarr.json"} | {file_of(path, chunk).name for chunk in chunks}
        for file in (path / folder).glob("*"):
            if file.name not in named:
                files.remove(file)
    for file in path.glob("*.partial"):
        files.remove(file)


def open_log(
    path: Path,
    row: RowLayout,
    places: Places,
    kept: Sequence[Manifest],
    speed: DiskSpeed,
    files: Files,
    direct: bool = False,
) -> Log:
    """The log as of the last of the kept commits, and `places`, which are empty, true of it; without commits, a log
    without rows.

    ValueError: it has rows of another layout, or more keys than the map may hold. Damaged: as of `rebuild`.
    """
    log = Log(path, row, places.chunks.rows, speed, files, checksums(kept) if kept else None, direct)
    if kept:
        newest = kept[-1]
        if (newest.row, newest.chunk_rows) != (row.describe(), places.chunks.rows):
            raise ValueError(
                f"{path} has rows {newest.row} in chunks of {newest.chunk_rows}, and this workflow rows "
                f"{row.describe()} in chunks of {places.chunks.rows}"
            )
        if (needed := bytes_for(newest.live_rows)) > places.caps.map_bytes:
            raise ValueError(
                f"storage.map is {places.caps.map_bytes:,} bytes, and the {newest.live_rows:,} keys of the last commit "
                f"need {needed:,}; raise it"
            )
        rebuild(places, log, newest)
        log.describe(newest.tail)
    places.begin_growth()
    return log


def rebuild(places: Places, log: Log, manifest: Manifest) -> None:
    """Put every key of the commit into the map; of several versions the last position wins.

    Damaged: a chunk is missing or short, or the keys are not those that were written.
    """
    chunks = places.chunks
    chunks.load(manifest.tail, len(log.checksums))
    for chunk in manifest.chunks:
        _check_size(log, chunk.number)
        keys_R = log.keys(chunk.number)
        used = np.flatnonzero(keys_R != RESERVED)
        chunks.hold(chunk.number, len(used))
        keys_N, at_N = keys_R[used], chunk.number * log.chunk_rows + used
        places_N = places.map.find(keys_N)
        new_N = places_N == UNKNOWN
        chunks.forget(row_of(places_N[~new_N]))
        places.map.insert(keys_N[new_N], place(DISK, at_N[new_N]))
        places.map.move(keys_N[~new_N], place(DISK, at_N[~new_N]))
    wrong = [c.number for c in manifest.chunks if chunks.stale(c.number) != c.stale]
    if wrong or len(places.map) != manifest.live_rows:
        raise Damaged(
            f"{log.path}: the keys of commit {manifest.number} are {len(places.map):,}, expected "
            f"{manifest.live_rows:,}; chunks with another number of stale rows: {wrong}; {DETAILS}"
        )


def _check_size(log: Log, chunk: int) -> None:
    file = rows_file(log.path, chunk)
    expected = log.chunk_rows * log.layout.num_bytes
    size = file.stat().st_size if file.exists() else None
    if size != expected:
        raise Damaged(f"{file}: it {'is missing' if size is None else f'has {size} bytes'}, not {expected}; {DETAILS}")
