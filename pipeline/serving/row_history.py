"""The row of one key in each kept commit of a run, found without a key map: by a scan of the keys of its shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.commits.manifest import Commits
from pipeline.commits.reading import GivenUp, HeldCommit, hold
from pipeline.commits.reopen import checksums
from pipeline.commits.run_state import newest_state
from pipeline.records import I64, U32, U64
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.log import Log, rows_file
from pipeline.storage.reader import allow_many_files
from pipeline.storage.shards import shard_of
from pipeline.storage.tier import check_keys

Change = Literal["no row", "new", "changed", "same", "gone"]


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A row in the log, and where it lies."""

    row_W: U32
    file: Path
    number: int
    """Number of the row in the file, from 0."""
    offset: int
    """Byte of the file at which it begins."""


@dataclass(frozen=True, slots=True)
class CommittedRow:
    """The row of a key in a commit."""

    commit: int
    name: str | None
    step: int
    """Steps taken before the commit."""
    logged: LoggedRow | None
    """None if the commit has no row of this key."""
    change: Change
    """What differs from the kept commit before; of the first one, "new" means that it has the row. Tags, which follow
    from the other words, are not compared."""


class RowFinder:
    """Finds the last version of a key's row in commits of one run. Keys of a chunk are read once for all commits, in
    memory of one chunk."""

    def __init__(self, key: int) -> None:
        self._key_1: U64 = np.array([key], np.uint64)
        self._rows: dict[tuple[int, str], int] = {}
        """Last row of the key in each chunk that was read, by the chunk's number and checksum of keys; -1: none."""

    def find(self, held: HeldCommit, speed: DiskSpeed) -> LoggedRow | None:
        """Find the key's row in a commit; None if it has none. Raises Damaged if what was read is not as written."""
        manifest = held.manifest
        with held.explaining(), _opened(held, speed) as log:
            row_1W = np.empty((1, log.layout.num_words), np.uint32)
            at = self._last(log, shard_of(self._key_1, manifest.num_shards).item())
            if at >= 0:
                at_1: I64 = np.array([at], np.int64)
                log.gather(at_1, row_1W)
                check_keys(log, at_1, row_1W, self._key_1)
            # A chunk that was deleted meanwhile may have come again with later rows.
            held.check()
        if at < 0:
            return None
        chunk, number = divmod(at, manifest.chunk_rows)
        file = rows_file(log.path, chunk, manifest.num_shards)
        return LoggedRow(row_1W[0], file, number, number * log.layout.num_bytes)

    def _last(self, log: Log, shard: int) -> int:
        """Last position of the key in the log; -1 if it is not there. Chunks of a shard were written in the order of
        their numbers."""
        for chunk in sorted(log.checksums, reverse=True):
            if chunk % log.shards.num == shard and (row := self._row_in(log, chunk)) >= 0:
                return chunk * log.chunk_rows + row
        return -1

    def _row_in(self, log: Log, chunk: int) -> int:
        known = chunk, log.checksums[chunk][1]
        if known not in self._rows:
            found = np.flatnonzero(log.keys(chunk) == self._key_1)
            self._rows[known] = int(found[-1]) if len(found) else -1
        return self._rows[known]


@contextmanager
def _opened(held: HeldCommit, speed: DiskSpeed) -> Iterator[Log]:
    allow_many_files()
    log = Log(held.run_dir / "table.zarr", held.manifest.table, speed, Files(), checksums([held.manifest]))
    try:
        yield log
    finally:
        log.close()


def row_history(run_dir: Path, finder: RowFinder, speed: DiskSpeed) -> list[CommittedRow]:
    """Return the row of a key in each kept commit, oldest first, but for commits that training deletes meanwhile."""
    history: list[CommittedRow] = []
    before: LoggedRow | None = None
    for number in Commits(run_dir, Files(), 1).numbers():
        with suppress(Gone), _held(run_dir, number) as held:
            manifest, row = held.manifest, finder.find(held, speed)
            change = _change(before, row)
            history.append(CommittedRow(number, manifest.name, newest_state([manifest]).step, row, change))
            before = row
    return history


class Gone(Exception):
    """A commit was deleted after it had been listed."""


@contextmanager
def _held(run_dir: Path, number: int) -> Iterator[HeldCommit]:
    """Hold a commit that was listed. Raises Gone if it is deleted before that, or meanwhile."""
    try:
        held = hold(run_dir, number)
    except ValueError as error:
        raise Gone from error
    try:
        with held:
            yield held
    except GivenUp as error:
        raise Gone from error


def _change(before: LoggedRow | None, after: LoggedRow | None) -> Change:
    if before is None or after is None:
        return "new" if after else "gone" if before else "no row"
    return "same" if np.array_equal(before.row_W[:-1], after.row_W[:-1]) else "changed"
