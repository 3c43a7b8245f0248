"""Reopening the log of an earlier session: deleting files that no kept commit names, and rebuilding the key map from
the keys in the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipeline.commits.manifest import DETAILS, Commits, Manifest
from pipeline.kernels.key_map import UNKNOWN
from pipeline.kernels.key_table import KeyTable
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.records import RESERVED, U64
from pipeline.storage.chunks import Chunks
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Damaged, Files, refuse_links
from pipeline.storage.key_map import bytes_for, most_bytes_for
from pipeline.storage.layout import RowLayout
from pipeline.storage.log import CHUNK_NAME, Log, TableFormat, folders_of, keys_file, rows_file, write_metadata
from pipeline.storage.places import Caps, Places
from pipeline.storage.reader import allow_many_files
from pipeline.storage.shards import ONE_SHARD, Shards

INSERTED_AT_ONCE = 1 << 19
"""Number of keys inserted together: a call for each of the 256 partitions of the map takes longer than 30 keys."""


def checksums(kept: Sequence[Manifest]) -> dict[int, tuple[str, str]]:
    """Checksums of each chunk that a kept commit references: (rows file, keys file)."""
    return {c.number: (c.rows_checksum, c.keys_checksum) for manifest in kept for c in manifest.chunks}


def clean(path: Path, kept: Sequence[Manifest], files: Files, shards: Shards = ONE_SHARD) -> None:
    """Delete chunks of the owned shards that no kept commit names, and partially written metadata files of an earlier
    session.

    Files with other names and files of other workers are kept. The metadata of the whole table belongs to the owner of
    shard 0. Raises ValueError if a folder is a symbolic link.
    """
    named = {file_of(path, chunk, shards.num) for file_of in (rows_file, keys_file) for chunk in checksums(kept)}
    refuse_links(folders_of(path, shards))
    for folder in folders_of(path, shards):
        files_there = [file for file in folder.glob("*") if not file.is_dir()]
        chunks = [file for file in files_there if folder.name in ("rows", "keys") and CHUNK_NAME.fullmatch(file.name)]
        partial = [file for file in files_there if file.name == "zarr.json.partial"]
        described_elsewhere = folder == path and 0 not in shards.owned
        for file in [file for file in chunks if file not in named] + ([] if described_elsewhere else partial):
            files.remove(file)


def keep_only(run_dir: Path, commits: Commits, kept: Sequence[Manifest]) -> None:
    """Delete all other commits, and the files that only these need. The table is then that of the last kept one."""
    commits.prune(kept)
    newest, table = kept[-1], run_dir / "table.zarr"
    clean(table, kept, commits.files, newest.table.shards)
    write_metadata(table, newest.table, newest.tails, commits.files)


def open_log(
    path: Path,
    row: RowLayout,
    places: Places,
    kept: Sequence[Manifest],
    speed: DiskSpeed,
    files: Files,
    direct: bool = False,
    writes: bool = True,
) -> Log:
    """Open the log as of the last kept commit, and fill `places`, which must be empty, to match; without commits,
    create an empty log. Both cover the shards owned by `places`. `writes`: True for training; False requires a commit,
    and nothing is written, repaired or deleted.

    Raises ValueError if the log has another row layout, other shards, or more keys than the map may hold, and Damaged
    as `rebuild` does.
    """
    shards, tails = places.chunks.shards, kept[-1].tails if kept else None
    kept = [manifest.part(shards.owned) for manifest in kept]
    table = TableFormat(row, places.chunks.rows, shards)
    log = Log(path, table, speed, files, checksums(kept) if kept else None, direct)
    if kept:
        _check_format(path, table, kept[-1])
        if bytes_for(kept[-1].live_rows) > places.caps.map_bytes:
            raise ValueError(
                f"storage.map is {format_size_down(places.caps.map_bytes)}, but the {kept[-1].live_rows:,} keys of the "
                "last commit need more: resume with --set "
                f"'storage.map={format_size_up(most_bytes_for(kept[-1].live_rows))}', or with more if new keys are "
                "still to come"
            )
        rebuild(places, log, kept[-1])
    if writes:
        if tails is not None:
            log.describe(tails)
        places.begin_growth()
    return log


def _check_format(path: Path, table: TableFormat, newest: Manifest) -> None:
    """Raises ValueError if a commit has another row layout or other shards."""
    row, chunk_rows, num_shards = table.layout.describe(), table.chunk_rows, table.shards.num
    if (newest.row, newest.chunk_rows, newest.num_shards) != (row, chunk_rows, num_shards):
        there, here = (
            f"rows of {of['tag'] + 1} words ({', '.join(of)}) in chunks of {rows:,} in {num:,} shards"
            for of, rows, num in (
                (newest.row, newest.chunk_rows, newest.num_shards), (row, chunk_rows, num_shards)
            )
        )  # fmt: skip
        raise ValueError(
            f"{path} has {there}, but this workflow makes {here}; change the workflow back, or start over with --fresh"
        )


def read_commit(
    run_dir: Path, manifest: Manifest, speed: DiskSpeed, direct: bool = False, map_bytes: int = 1 << 62
) -> tuple[Places, Log]:
    """Open all shards of the log of a commit, to read rows without tiers. `map_bytes`: maximum size of the key map.
    Raises the same exceptions as `open_log`."""
    allow_many_files()
    chunks = Chunks(manifest.chunk_rows, 2.0, 0.0, manifest.table.shards)
    places = Places(0, 0, ("clock", "clock"), Caps(1 << 62, map_bytes), chunks)
    layout = RowLayout.of(manifest.row)
    return places, open_log(run_dir / "table.zarr", layout, places, [manifest], speed, Files(), direct, writes=False)


def rebuild(places: Places, log: Log, manifest: Manifest) -> None:
    """Insert every key of the commit, or of its part for the owned shards, into the map. If there are several versions
    of a key, the last position is used.

    Raises Damaged if a chunk is missing or has another size, or the keys differ from those written.
    """
    chunks = places.chunks
    chunks.load(manifest.tails, log.checksums)
    places.map.reserve(manifest.live_rows)
    for chunk in manifest.chunks:
        _check_size(log, chunk.number)
    insert_chunks(places, [chunk.number for chunk in manifest.chunks], log.keys)
    places.map.shrink()
    wrong = [c.number for c in manifest.chunks if chunks.stale(c.number) != c.stale]
    if wrong or len(places.map) != manifest.live_rows:
        raise Damaged(
            f"{log.path}: commit {manifest.number} has {len(places.map):,} keys in the log, expected "
            f"{manifest.live_rows:,}; chunks with a wrong number of stale rows: {wrong}; {DETAILS}"
        )


def insert_chunks(places: Places, chunk_numbers: Sequence[int], keys_of: Callable[[int], U64]) -> None:
    """Insert the keys of log chunks into the map, in this order. Earlier versions of a key become stale. `keys_of`:
    returns the keys [R] of a chunk, with `RESERVED` for padding."""
    at_once = max(1, INSERTED_AT_ONCE // places.chunks.rows)
    table = KeyTable()
    for first in range(0, len(chunk_numbers), at_once):
        table.clear()
        _insert(places, table, [(chunk, keys_of(chunk)) for chunk in chunk_numbers[first : first + at_once]])


def _insert(places: Places, table: KeyTable, keys_of_chunks: Sequence[tuple[int, U64]]) -> None:
    """Insert the keys of some chunks. If a key occurs several times, the last position is used."""
    chunks = places.chunks
    keys, at = [], []
    for chunk, keys_R in keys_of_chunks:
        used = np.flatnonzero(keys_R != RESERVED)
        chunks.hold(chunk, len(used))
        keys.append(keys_R[used])
        at.append(chunk * chunks.rows + used)
    keys_N, at_N = np.concatenate(keys), np.concatenate(at)
    number_N = np.empty(len(keys_N), np.int32)
    table.add(keys_N, number_N)
    keys_U = table.keys_U
    last_U = np.empty(len(keys_U), np.int64)
    # If several positions have the same number, NumPy keeps the last.
    last_U[number_N] = at_N
    places_U = places.map.find(keys_U)
    new_U = places_U == UNKNOWN
    chunks.forget(chunks.positions_of(places_U[~new_U]))
    chunks.forget(at_N[last_U[number_N] != at_N])
    places.map.insert(keys_U[new_U], chunks.places_of(last_U[new_U]))
    places.map.move(keys_U[~new_U], chunks.places_of(last_U[~new_U]))


def _check_size(log: Log, chunk: int) -> None:
    file = rows_file(log.path, chunk, log.shards.num)
    expected = log.chunk_rows * log.layout.num_bytes
    size = file.stat().st_size if file.exists() else None
    if size != expected:
        raise Damaged(
            f"{file}: it {'is missing' if size is None else f'has {size} bytes'}, expected {expected} bytes; {DETAILS}"
        )
