"""External sort of a commit's rows by key: sorted runs on disk, then one range of keys after another.

Runs follow the order of the log, where the last version of a key is the valid one. Sorting is stable, so the last of
equal keys is also the valid one across runs. No key map is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.commits.manifest import ChunkState, Manifest
from pipeline.records import F32, I64, RESERVED, U64, Array
from pipeline.serving.caught_up import CaughtUp
from pipeline.serving.commit import OpenedCommit
from pipeline.storage.files import Damaged, Files, checksum_of
from pipeline.storage.layout import row_keys
from pipeline.storage.log import TableFormat, rows_file

PART_BYTES = 64 << 20
"""Approximate size of the parts of the table."""
RUN_SHARE = 5
"""A run takes at most a fifth of the memory in the format of the log, since sorting needs rows, weights, and copies of
both."""


class SortedPart(NamedTuple):
    """Rows of a commit in a range of keys, sorted by key: the last version of each."""

    number: int
    keys_N: U64
    weights_NC: F32


def sorted_parts(
    opened: OpenedCommit, folder: Path, saved: Mapping[str, Array], memory: int, row_bytes: int,
    say: Callable[[str], None],
) -> Iterator[SortedPart]:  # fmt: skip
    """Write the sorted runs of the commit's rows that are missing from the folder, and yield the rows in parts of about
    PART_BYTES. `row_bytes`: size of an exported row. Raises Damaged if the number of rows differs from the manifest."""
    files, num_rows = Files(), 0
    caught_up = CaughtUp(opened.workflow.optimizer, opened.layout, opened.features, saved, opened.step)
    runs = SortedRuns(folder, opened.layout.num_weights)
    table, path = opened.manifest.table, opened.held.run_dir / "table.zarr"
    groups = chunk_groups(opened.manifest, memory // RUN_SHARE)
    for number, chunks in enumerate(groups):
        if not runs.has(number):
            with opened.held.explaining():
                keys_N, weights_NC = rows_of_chunks(path, table, chunks, caught_up)
            runs.write(number, keys_N, weights_NC, files)
            say(f"sorted {number + 1} of {len(groups)}")
    for number, (begin, end) in enumerate(key_ranges(opened.manifest.live_rows * row_bytes)):
        keys_N, weights_NC = runs.read(len(groups), begin, end)
        num_rows += len(keys_N)
        yield SortedPart(number, keys_N, weights_NC)
    check_num_rows(opened, num_rows)


def check_num_rows(opened: OpenedCommit, num_rows: int) -> None:
    """Raises Damaged if the commit's number of rows differs from its manifest."""
    if num_rows != (expected := opened.manifest.live_rows):
        raise Damaged(
            f"{opened.held.run_dir}: commit {opened.held.number} has {num_rows:,} rows, expected {expected:,}; "
            "`pipeline verify RUN` says more"
        )


@dataclass(frozen=True, slots=True)
class SortedRuns:
    """Runs of rows (key, weights), each sorted by key."""

    folder: Path
    num_weights: int

    def paths(self, number: int) -> tuple[Path, Path]:
        """Files of the keys and the weights of a run."""
        return self.folder / f"{number:05}.keys", self.folder / f"{number:05}.weights"

    def write(self, number: int, keys_N: U64, weights_NC: F32, files: Files) -> None:
        """Sort rows, keep only the last row of each key, and write them durably. The file of weights is published last:
        if it exists, the run is complete."""
        order = last_of_each(keys_N)
        of_keys, of_weights = self.paths(number)
        files.replace(of_keys, [np.ascontiguousarray(keys_N[order])])
        files.replace(of_weights, [np.ascontiguousarray(weights_NC[order])])

    def has(self, number: int) -> bool:
        return self.paths(number)[1].exists()

    def read(self, num_runs: int, begin: int, end: int) -> tuple[U64, F32]:
        """Rows of all runs with keys from `begin` to `end`, exclusive, sorted by key: the last version of each."""
        keys, weights = [np.empty(0, np.uint64)], [np.empty((0, self.num_weights), np.float32)]
        for number in range(num_runs):
            of_keys, of_weights = self.paths(number)
            size = of_keys.stat().st_size // 8
            if not size:
                continue
            keys_N = np.memmap(of_keys, np.uint64, "r")
            first = int(np.searchsorted(keys_N, np.uint64(begin)))
            last = size if end > int(RESERVED) else int(np.searchsorted(keys_N, np.uint64(end)))
            keys.append(np.array(keys_N[first:last]))
            found = np.memmap(of_weights, np.float32, "r", shape=(size, self.num_weights))
            weights.append(np.array(found[first:last]))
        all_N, weights_NC = np.concatenate(keys), np.concatenate(weights)
        order = last_of_each(all_N)
        return all_N[order], weights_NC[order]


def last_of_each(keys_N: U64) -> I64:
    """Positions of the last row of each key, in ascending order of keys."""
    order = np.argsort(keys_N, kind="stable")
    sorted_N = keys_N[order]
    return order[np.append(sorted_N[1:] != sorted_N[:-1], True)[: len(order)]]


def chunk_groups(manifest: Manifest, run_bytes: int) -> list[list[ChunkState]]:
    """Chunks of each run: at least one, and otherwise at most `run_bytes` of rows in the log."""
    table = manifest.table
    several = max(1, run_bytes // (table.chunk_rows * table.layout.num_bytes))
    chunks = manifest.chunks
    return [list(chunks[at : at + several]) for at in range(0, len(chunks), several)]


def rows_of_chunks(path: Path, table: TableFormat, chunks: list[ChunkState], caught_up: CaughtUp) -> tuple[U64, F32]:
    """Keys and caught-up weights of all rows in these chunks, in the order of the log. Raises Damaged if a file does
    not match the commit's checksum."""
    keys, weights = [np.empty(0, np.uint64)], [np.empty((0, table.layout.num_weights), np.float32)]
    for chunk in chunks:
        file = rows_file(path, chunk.number, table.shards.num)
        if checksum_of(file) != chunk.rows_checksum:
            raise Damaged(f"{file}: its checksum is not that of the commit; `pipeline verify RUN` says more")
        rows_RW = np.fromfile(file, np.uint32).reshape(-1, table.layout.num_words)
        rows_NW = rows_RW[row_keys(rows_RW) != RESERVED]
        keys.append(row_keys(rows_NW))
        weights.append(caught_up.catch_up(rows_NW).copy())
    return np.concatenate(keys), np.concatenate(weights)


def key_ranges(num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the key range of each part, about PART_BYTES of the table. Ranges are equal, since keys are hashes."""
    num_parts = 1
    while num_parts * PART_BYTES < num_bytes:
        num_parts *= 2
    size = (1 << 64) // num_parts
    for part in range(num_parts):
        yield part * size, (part + 1) * size
