"""Writing the rows of a commit to the log: every changed row of device and host, and the live rows of sparse chunks.
And the fingerprint of the table and the dense part: equal fingerprints mean equal bits.

The pipeline must be drained, since places must agree with the bytes. Rows stay in their tier, and a copy is written to
the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.commits.manifest import ChunkState, Manifest
from pipeline.kernels.hashing import add_row_hashes
from pipeline.records import I64, U32, U64
from pipeline.storage.files import checksum
from pipeline.storage.key_map import DEVICE, DISK, HOST, row_of, tier_of
from pipeline.storage.layout import row_keys
from pipeline.storage.log import Log, metadata
from pipeline.storage.places import Places, Slots
from pipeline.storage.shards import shard_of
from pipeline.storage.tier import KeyedTier, Tier, check_keys, widened


def table_hash(
    places: Places, log: Log, chunk_RW: U32, catch_up: Callable[[U32], None] = lambda rows_UW: None
) -> tuple[int, int]:
    """Return the sum, modulo 2^128, of the hashes of all live rows (without tags), and the number of these rows. All
    rows must be in the log.

    `catch_up`: applies missed steps to widened copies of rows (dense semantics).
    """
    total = np.zeros(2, np.uint64)
    count = 0
    for chunk in places.chunks.live().tolist():
        at, keys = live_at(places, log, chunk)
        log.gather(at, chunk_RW[: len(at)])
        check_keys(log, at, chunk_RW[: len(at)], keys)
        wide_UX = widened(log.layout, chunk_RW[: len(at)])
        catch_up(wide_UX)
        add_row_hashes(wide_UX, log.layout.wide.tag_at, total)
        count += len(at)
    return int(total[0]) << 64 | int(total[1]), count


def fingerprint(rows: int, dense: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hexadecimal digest of the table hash and of named arrays (parameters, buffers, optimizer state), in the given
    order."""
    digest = hashlib.blake2b(rows.to_bytes(16, "little"), digest_size=16)
    for name, array in dense:
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


Settle = Callable[[Any, U64, I64], None]
"""Callback that records new log positions. Arguments: slots or old positions of the rows, keys, new positions."""


@dataclass(frozen=True, slots=True)
class FlushedRows:
    """Numbers of rows written by a commit: changed rows of the slabs, and rows merged from sparse chunks."""

    changed: int
    merged: int


def flush(places: Places, device: Tier, host: Tier, log: KeyedTier, chunk_RW: U32) -> FlushedRows:
    """Write all of these rows, as one stream of chunks per shard. Only the last chunk of a stream is padded.
    `chunk_RW`: buffer of one chunk. Raises Damaged if a row does not have the expected key.
    """
    shards = places.chunks.shards
    slabs = ((places.device, device), (places.host, host))
    changed_S = np.zeros(shards.num, np.int64)
    for slots, _ in slabs:
        for in_slab in slots.changed():
            changed_S += np.bincount(shard_of(slots.keys_S[in_slab], shards.num), minlength=shards.num)
    sparse, merged = _to_merge(places, changed_S), 0
    for shard in shards.owned:
        stream = _Stream(places, log, chunk_RW, shard)
        for slots, tier in slabs:
            # Scan the slots once per shard, since a list of all changed slots would take too much memory.
            for in_slab in slots.changed():
                mine = in_slab[shard_of(slots.keys_S[in_slab], shards.num) == shard]
                stream.add(tier, mine, slots.keys_S[mine], _copied(slots))
        for chunk in sparse[sparse % shards.num == shard].tolist():
            at, keys = live_at(places, log, chunk)
            merged += len(at)
            stream.add(log, at, keys, lambda old, keys, new: _move(places, old, keys, new))
        stream.write()
    return FlushedRows(int(changed_S.sum()), merged)


def _to_merge(places: Places, changed_S: I64) -> I64:
    """Sparse chunks to merge, in ascending order of live rows, as far as the disk has room for them in addition to the
    changed rows of each shard. `plan` brings a commit forward before room runs out, so all sparse chunks fit unless the
    log settings were changed."""
    chunks, rows_S = places.chunks, changed_S.tolist()
    room = min(places.commit_chunks, places.caps.disk_chunks - chunks.present)
    room -= sum(map(chunks.of_rows, rows_S))
    sparse = chunks.sparse()
    for n, chunk in enumerate(sparse.tolist()):
        shard = chunk % chunks.shards.num
        live = chunks.rows - chunks.stale(chunk)
        room -= chunks.of_rows(rows_S[shard] + live) - chunks.of_rows(rows_S[shard])
        if room < 0:
            return sparse[:n]
        rows_S[shard] += live
    return sparse


class _Stream:
    """Writer of the chunks of one shard: collects rows in a buffer, and writes the buffer when it is full."""

    def __init__(self, places: Places, log: KeyedTier, chunk_RW: U32, shard: int) -> None:
        self._places, self._log, self._chunk_RW, self._shard = places, log, chunk_RW, shard
        self._filled = 0
        self._parts: list[tuple[Settle, Any, int]] = []

    def add(self, tier: Tier, at: Any, keys: U64, settle: Settle) -> None:
        """Add the rows of these keys, which are at the slots or positions `at` of `tier`. `settle`: called for each
        part of the rows after it is written."""
        while len(at):
            part = at[: len(self._chunk_RW) - self._filled]
            rows_RW = self._chunk_RW[self._filled : self._filled + len(part)]
            tier.gather(part, rows_RW)
            check_keys(tier, part, rows_RW, keys[: len(part)])
            self._parts.append((settle, part, self._filled))
            self._filled += len(part)
            at, keys = at[len(part) :], keys[len(part) :]
            if self._filled == len(self._chunk_RW):
                self.write()

    def write(self) -> None:
        rows_RW = self._chunk_RW[: self._filled]
        at = self._places.chunks.add(self._filled, self._shard)
        self._log.scatter(at, rows_RW)
        keys = row_keys(rows_RW)
        for settle, part, first in self._parts:
            now = slice(first, first + len(part))
            settle(part, keys[now], at[now])
        self._filled, self._parts = 0, []


def _copied(slots: Slots) -> Settle:
    def settle(at: Any, keys: U64, new: I64) -> None:
        slots.copies_S[at] = new

    return settle


def _move(places: Places, old: I64, keys: U64, new: I64) -> None:
    """Record that live rows, or copies of unchanged rows, have moved within the log."""
    places_N = places.map.find(keys)
    tier_N = tier_of(places_N)
    on_disk = tier_N == DISK
    places.map.move(keys[on_disk], places.chunks.places_of(new[on_disk]))
    for slots, tier in ((places.device, DEVICE), (places.host, HOST)):
        slots.copies_S[row_of(places_N[tier_N == tier])] = new[tier_N == tier]
    places.chunks.forget(old)


def is_live(places: Places, keys_N: U64, at_N: I64) -> NDArray[np.bool_]:
    """[N] True if the row at this position of the log is the latest version of its key."""
    places_N = places.map.find(keys_N)
    live_N = places_N == places.chunks.places_of(at_N)
    tier_N = tier_of(places_N)
    for slots, tier in ((places.device, DEVICE), (places.host, HOST)):
        here = tier_N == tier
        live_N[here] = slots.copies_S[row_of(places_N[here])] == at_N[here]
    return live_N


def live_at(places: Places, log: KeyedTier, chunk: int) -> tuple[I64, U64]:
    """Positions and keys of the live rows of a chunk."""
    at_R, keys_R = chunk * log.chunk_rows + np.arange(log.chunk_rows), log.keys(chunk)
    live_R = is_live(places, keys_R, at_R)
    return at_R[live_R], keys_R[live_R]


def part_of(places: Places, log: Log, number: int) -> Manifest:
    """Return the part of commit `number` for the owned shards, without name, dense part and state. All rows must be in
    the log."""
    chunks = places.chunks
    assert chunks.live_rows == len(places.map), "the log does not hold every row once"
    described = metadata(log.table, chunks.tails)
    return Manifest(
        number=number,
        name=None,
        num_shards=chunks.shards.num,
        tails=chunks.tails,
        live_rows=len(places.map),
        row=log.layout.describe(),
        chunk_rows=log.chunk_rows,
        chunks=tuple(ChunkState(c, chunks.stale(c), *log.checksums[c]) for c in chunks.live().tolist()),
        metadata={file: checksum(content) for file, content in described.items()},
        dense=(),
        state={},
    )
