"""dedup: find the working set of a block, and index each batch into it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.kernels.dedup import group_sources, renumber
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyRange, KeyTable, number_parts
from pipeline.kernels.requests import order_by_owner
from pipeline.machine.threads import Threads, cut_range
from pipeline.records import I32, I64, U64, BatchIndex, Examples, FieldLayout, Refusal, Unique
from pipeline.storage.shards import shard_of


class KeyOwners:
    """Owners of keys among `world` workers. The owner of a key is the worker that owns its shard."""

    def __init__(self, owner_of_shard: Sequence[int], world: int) -> None:
        self._owner_of_shard = np.array(owner_of_shard, np.int64)
        self.world = world

    def of(self, keys_U: U64) -> I64:
        """[U] rank of each key's owner."""
        return self._owner_of_shard[shard_of(keys_U, len(self._owner_of_shard))]

    def order(self, keys_U: U64) -> tuple[I32, I32, list[int]]:
        """Return the order of the keys by owner, the place of each key in that order, and each owner's number of
        keys."""
        order_U, place_U = np.empty(len(keys_U), np.int32), np.empty(len(keys_U), np.int32)
        ends_W = np.empty(self.world, np.int64)
        order_by_owner(self.of(keys_U), ends_W, order_U, place_U)
        return order_U, place_U, np.diff(ends_W, prepend=0).tolist()


class Workspace:
    """Tables and arrays that `dedup` reuses for every block. They grow to the size that the largest block needs."""

    def __init__(self, layout: FieldLayout, threads: Threads | None = None, owners: KeyOwners | None = None) -> None:
        """`owners`: owners of keys, only if there are several workers."""
        self.owners = owners
        self.single_S = np.array(layout.single_S, np.int32)
        self.multi_M = np.array(layout.multi_M, np.int32)
        self.threads = threads or Threads(1)
        self.block = KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
        self.tables = [KeyTable() for _ in range(self.threads.num_threads)]
        """One table for each thread, which removes it from the list while it works on a batch."""
        self._kept: list[U64] = []

    def make_room(self, num_batches: int) -> None:
        self._kept += [np.empty(0, np.uint64)] * (num_batches - len(self._kept))

    def keep(self, batch: int, keys_P: U64) -> U64:
        """Copy a batch's keys to memory that stays valid until the next block."""
        if len(self._kept[batch]) < len(keys_P):
            self._kept[batch] = np.empty(len(keys_P) + len(keys_P) // 4, np.uint64)
        kept_P = self._kept[batch][: len(keys_P)]
        kept_P[:] = keys_P
        return kept_P


def dedup(examples: Examples | Refusal, work: Workspace) -> Unique | Refusal:
    """Find the block's unique keys, in order of first appearance, and index its batches. Overwrites the block's keys:
    the inverse of a batch takes the first half of the bytes of its keys, its sources the second half.

    Each batch is deduplicated separately, in a table that fits in cache. The unique keys of the batches, in order, are
    then deduplicated into those of the block.
    """
    if isinstance(examples, Refusal):
        return examples
    batches = _index_batches(examples, work)
    work.block.clear()
    index = []
    for bags_MB, (keys_P, starts_P, inverse_V, source_V, parts_W) in zip(examples.bags, batches, strict=True):
        unique_P = np.empty(len(keys_P), np.int32)
        work.block.add(keys_P, unique_P)
        lists_LB = bags_MB[len(work.multi_M) :] if examples.lists else None
        index.append(BatchIndex(unique_P, starts_P, inverse_V, source_V, parts_W, lists_LB))
    return Unique(examples.block, work.block.keys_U.copy(), tuple(index))


Indexed = tuple[U64, I32, I32, I32, tuple[int, ...]]
"""Unique keys of a batch, and `starts_P`, `inverse_V`, `source_V` and `parts_W` of its `BatchIndex`."""


def _index_batches(examples: Examples, work: Workspace) -> list[Indexed]:
    """Index all batches. Each thread takes whole batches. If there are fewer batches than threads, all threads share
    one batch at a time."""
    num_batches = examples.block.num_batches
    work.make_room(num_batches)
    if num_batches < work.threads.num_threads:
        return [_index_batch(batch, examples, work.tables, work) for batch in range(num_batches)]
    indexed: list[Indexed | None] = [None] * num_batches

    def index_some(begin: int, end: int) -> None:
        table = work.tables.pop()
        for batch in range(begin, end):
            indexed[batch] = _index_batch(batch, examples, [table], work)
        work.tables.append(table)

    work.threads.split(num_batches, index_some, minimum=1)
    return [one for one in indexed if one]


def _index_batch(batch: int, examples: Examples, tables: Sequence[KeyTable], work: Workspace) -> Indexed:
    keys_V = examples.keys_V[examples.batch_starts[batch] : examples.batch_starts[batch + 1]]
    inverse_V, source_V = _halves(keys_V)
    ranges = cut_range(len(keys_V), len(tables))
    parts = [KeyRange(keys_V[part], _halves(keys_V[part])[0], inverse_V[part]) for part in ranges]
    keys_P = work.keep(batch, number_parts(parts, tables, work.threads).keys_U)
    parts_W = _by_owner(keys_P, inverse_V, work.owners) if work.owners else ()
    starts_P = np.empty(len(keys_P) + 1, np.int32)
    begin, end = examples.block.batch_bounds(batch)
    group_sources(inverse_V, examples.bags[batch], work.single_S, work.multi_M, end - begin, starts_P, source_V)
    return keys_P, starts_P, inverse_V, source_V, parts_W


def _by_owner(keys_P: U64, inverse_V: I32, owners: KeyOwners) -> tuple[int, ...]:
    """Sort the keys by owner, in place, and update the inverse. Returns each owner's number of keys."""
    order_P, place_P, parts_W = owners.order(keys_P)
    keys_P[:] = keys_P[order_P]
    renumber(inverse_V, place_P, inverse_V)
    return tuple(parts_W)


def _halves(keys_V: U64) -> tuple[I32, I32]:
    """Bytes of an array of keys, as two arrays of 32-bit integers."""
    words = keys_V.view(np.int32)
    return words[: len(keys_V)], words[len(keys_V) :]
