"""Tiers of one worker in a replay: rows without weights, moved by the stages and commits of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.commits.flush import FlushedRows, flush
from pipeline.commits.reopen import insert_chunks
from pipeline.records import I32, I64, RESERVED, U32, U64, OwnedKeys, Plan, Refusal, Trained, Unique
from pipeline.replay.capacities import Capacities
from pipeline.stages.plan import RingRows, plan
from pipeline.stages.write_back import write_back
from pipeline.storage.chunks import Chunks
from pipeline.storage.layout import KEY_WORDS, row_keys
from pipeline.storage.places import Caps, Places
from pipeline.storage.shards import Shards, shard_of
from pipeline.storage.slab import Slab


@dataclass(frozen=True, slots=True)
class KeyCommit:
    """Chunks of the log that a commit names: a manifest without checksums."""

    number: int
    name: str | None
    tails: tuple[int, ...]
    """First row of each shard's next chunk."""
    stale: dict[int, int]
    """Number of stale rows of each chunk that has a live row, by chunk number, ascending."""


class KeyLog:
    """The disk tier of all workers: the keys of each chunk on disk."""

    def __init__(self, chunk_rows: int) -> None:
        self.chunk_rows = chunk_rows
        self._keys: dict[int, U64] = {}

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        chunk_U, row_U = np.divmod(at_U, self.chunk_rows)
        for chunk in np.unique(chunk_U).tolist():
            here_U = chunk_U == chunk
            out_UW[here_U] = rows_of(self._keys[chunk][row_U[here_U]])

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        keys_U = row_keys(rows_UW)
        for first in range(0, len(at_U), self.chunk_rows):
            part = keys_U[first : first + self.chunk_rows]
            keys_R = np.full(self.chunk_rows, RESERVED, np.uint64)
            keys_R[: len(part)] = part
            self._keys[int(at_U[first]) // self.chunk_rows] = keys_R

    def keys(self, chunk: int) -> U64:
        return self._keys[chunk]

    def keep(self, chunks: Collection[int]) -> None:
        """Delete all other chunks."""
        self._keys = {chunk: self._keys[chunk] for chunk in chunks}

    def where(self, at: int) -> str:
        return f"row {at} of the replayed log"

    def close(self) -> None:
        self._keys.clear()


class KeyTiers:
    """Places of one worker, and tiers that contain only the keys of its rows."""

    def __init__(self, capacities: Capacities, policies: tuple[str, str], log: KeyLog, shards: Shards) -> None:
        """`policies`: names of the policies of device and host; `log`: the log of all workers."""
        c = capacities
        chunks = Chunks(c.chunk_rows, c.log_multiple, c.log_growth, shards)
        self.places = Places(c.device_rows, c.host_rows, policies, Caps(c.disk_chunks, c.map_bytes), chunks)
        self._device, self._host, self._log = Slab(c.device_rows, KEY_WORDS), Slab(c.host_rows, KEY_WORDS), log
        self._chunk_RW = np.empty((c.chunk_rows, KEY_WORDS), np.uint32)

    def open(self, newest: KeyCommit, kept: Sequence[KeyCommit]) -> None:
        """Open this worker's part of a commit, with empty slabs. Must be called before any block is planned."""
        chunks = self.places.chunks
        chunks.load(newest.tails, [chunk for chunk in named_by(kept) if self._owns(chunk)])
        insert_chunks(self.places, [chunk for chunk in newest.stale if self._owns(chunk)], self._log.keys)
        self.places.begin_growth()

    def fill(self, keys_U: U64) -> None:
        """Write rows to the log, as a commit does, for those of these distinct keys that are in its shards."""
        chunks, numbers = self.places.chunks, list[int]()
        shard_U = shard_of(keys_U, chunks.shards.num)
        for shard in chunks.shards.owned:
            of_shard = keys_U[shard_U == shard]
            for first in range(0, len(of_shard), chunks.rows):
                part = of_shard[first : first + chunks.rows]
                at = chunks.add(len(part), shard)
                self._log.scatter(at, rows_of(part))
                numbers.append(int(at[0]) // chunks.rows)
        insert_chunks(self.places, numbers, self._log.keys)
        self.places.begin_growth()

    def plan(self, window: Sequence[Unique | OwnedKeys | Refusal], room: RingRows) -> Plan | Refusal:
        """Plan the first block of the window and move its rows."""
        planned = plan(window, self.places, room)
        if isinstance(planned, Plan) and planned.moves.arrives:
            self._move(planned)
        return planned

    def _move(self, planned: Plan) -> None:
        outgoing_EW = np.empty((len(planned.victim_slots_E), KEY_WORDS), np.uint32)
        self._device.gather(planned.victim_slots_E, outgoing_EW)
        self._device.scatter(planned.arrival_slots, rows_of(planned.arrival_keys_A))
        write_back(planned, Trained(planned.block, outgoing_EW), self._host, self._log, self._chunk_RW)

    def flush(self) -> FlushedRows:
        """Write all rows changed since the last commit to the log."""
        return flush(self.places, self._device, self._host, self._log, self._chunk_RW)

    def stale(self) -> dict[int, int]:
        """Number of stale rows of each chunk that has a live row."""
        chunks = self.places.chunks
        return {chunk: chunks.stale(chunk) for chunk in chunks.live().tolist()}

    def settle(self, kept: Sequence[KeyCommit], at_least: int) -> None:
        """Clean up after a commit, as `Worker.settle` does."""
        self.places.chunks.keep([chunk for chunk in named_by(kept) if self._owns(chunk)])
        self.places.begin_growth(at_least)

    def _owns(self, chunk: int) -> bool:
        shards = self.places.chunks.shards
        return chunk % shards.num in shards.owned


def named_by(kept: Sequence[KeyCommit]) -> set[int]:
    """Chunks named by these commits."""
    return {chunk for commit in kept for chunk in commit.stale}


def rows_of(keys_U: U64) -> U32:
    """Rows [U, 2] that consist of these keys only, as a view."""
    return keys_U.view(np.uint32).reshape(-1, KEY_WORDS)
