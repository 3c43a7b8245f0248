"""Comparison of two commits of a run, by the bytes of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.commits.reading import HeldCommit
from pipeline.commits.reopen import checksums
from pipeline.records import I64, RESERVED, U32, U64
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.log import Log
from pipeline.storage.reader import allow_many_files

PIECE = 1 << 16
"""Rows compared at a time."""


@dataclass(frozen=True, slots=True)
class Diff:
    """Keys, ascending, whose rows differ between two commits."""

    new: U64
    changed: U64
    """Keys whose row has other bytes; the tag, which follows from them, is not compared."""
    gone: U64


def compare(before: HeldCommit, after: HeldCommit, speed: DiskSpeed) -> Diff:
    """Compare two commits of one run. Rows are read only from chunks that the commits do not share, and of the shared
    ones only the keys and the earlier versions of the rows that follow: memory is that of the keys that differ.

    Raises ValueError if the tables have rows of different layouts, and Damaged if a row is damaged.
    """
    one, other = before.manifest, after.manifest
    if (one.row, one.chunk_rows, one.num_shards) != (other.row, other.chunk_rows, other.num_shards):
        raise ValueError(
            f"commits {one.number} and {other.number} have rows or chunks of different layouts; name two of one run"
        )
    allow_many_files()
    ours, theirs = checksums([one]), checksums([other])
    shared = {chunk for chunk in ours.keys() & theirs.keys() if ours[chunk] == theirs[chunk]}
    with before.explaining(), after.explaining():
        logs = [Log(h.run_dir / "table.zarr", h.manifest.table, speed, Files(), checksums([h.manifest]))
                for h in (before, after)]  # fmt: skip
        try:
            # Only keys with a version in a chunk of one commit alone can differ.
            own = [_latest(log, log.checksums.keys() - shared) for log in logs]
            keys_N = np.union1d(own[0][0], own[1][0])
            in_shared = _places(logs[0], shared, keys_N)
            places = [np.maximum(in_shared, _at(keys_N, *mine)) for mine in own]
            known = [at >= 0 for at in places]
            both = np.flatnonzero(known[0] & known[1] & (places[0] != places[1]))
            changed = np.concatenate([
                np.empty(0, np.int64),
                *(both[a : a + PIECE][_differ(logs, [p[both[a : a + PIECE]] for p in places])]
                  for a in range(0, len(both), PIECE)),
            ])  # fmt: skip
            before.check()
            after.check()
            return Diff(keys_N[known[1] & ~known[0]], keys_N[changed], keys_N[known[0] & ~known[1]])
        finally:
            for log in logs:
                log.close()


def _latest(log: Log, chunks: Iterable[int]) -> tuple[U64, I64]:
    """Keys of these chunks, ascending, and the last position of each."""
    keys, at = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for chunk in chunks:
        keys_R = log.keys(chunk)
        used = np.flatnonzero(keys_R != RESERVED)
        keys.append(keys_R[used])
        at.append(chunk * log.chunk_rows + used)
    keys_N, at_N = np.concatenate(keys), np.concatenate(at)
    order = np.lexsort((at_N, keys_N))
    keys_N, at_N = keys_N[order], at_N[order]
    last = np.append(keys_N[1:] != keys_N[:-1], True)[: len(keys_N)]
    return keys_N[last], at_N[last]


def _places(log: Log, chunks: Iterable[int], keys_N: U64) -> I64:
    """Last position of each of these keys, ascending, in the chunks; -1 if it has none."""
    places_N = np.full(len(keys_N), -1, np.int64)
    for chunk in chunks:
        keys_R = log.keys(chunk)
        at_R = _at(keys_R, keys_N, np.arange(len(keys_N)))
        found = np.flatnonzero(at_R >= 0)
        np.maximum.at(places_N, at_R[found], chunk * log.chunk_rows + found)
    return places_N


def _at(keys_N: U64, sorted_M: U64, values_M: I64) -> I64:
    """Value of each key among the sorted ones; -1 if it is not there."""
    if not len(sorted_M):
        return np.full(len(keys_N), -1, np.int64)
    at_N = np.minimum(np.searchsorted(sorted_M, keys_N), len(sorted_M) - 1)
    values_N: I64 = np.where(sorted_M[at_N] == keys_N, values_M[at_N], -1)
    return values_N


def _differ(logs: list[Log], places: list[I64]) -> np.ndarray:
    """[N] True for rows that have other words in the two logs."""
    rows: list[U32] = []
    for log, at_N in zip(logs, places, strict=True):
        # Positions ascend in the files, so that neighbouring rows share a read.
        rows_NW = np.empty((len(at_N), log.layout.num_words), np.uint32)
        log.gather(at_N, rows_NW)
        rows.append(rows_NW[:, : log.layout.tag_at])
    return (rows[0] != rows[1]).any(axis=1)
