"""dedup: the working set of a block, and each batch's own index into it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pipeline.kernels.dedup import compact_batch, group_sources, refill_table, unique_keys
from pipeline.records import I32, U64, BatchIndex, Block, Examples, Layout, Refusal, Unique

FIRST_ENTRIES = 1 << 12


class Workspace:
    """Arrays that `dedup` uses again for every block; they grow to what the largest block needs."""

    def __init__(self, layout: Layout) -> None:
        self.single_S = np.array(layout.single_S, np.int32)
        self.multi_M = np.array(layout.multi_M, np.int32)
        self.table: I32 = np.zeros(FIRST_ENTRIES, np.int32)
        self.keys_U: U64 = np.empty(FIRST_ENTRIES // 2, np.uint64)
        # Per unique key of the block: the batch that saw it last, and its position in that batch.
        self.seen_U = self.local_U = np.empty(0, np.int32)
        self.unique_P = self.counts_P = np.empty(0, np.int32)

    def grow_table(self, num_unique: int) -> None:
        self.table = np.zeros(2 * len(self.table), np.int32)
        self.keys_U = np.concatenate([self.keys_U, np.empty_like(self.keys_U)])
        refill_table(self.keys_U, num_unique, self.table)

    def begin_batches(self, num_unique: int) -> None:
        if len(self.seen_U) < num_unique:
            self.seen_U, self.local_U, self.unique_P, self.counts_P = np.empty((4, len(self.keys_U)), np.int32)
        self.seen_U[:num_unique] = -1


def dedup(examples: Examples | Refusal, work: Workspace) -> Unique | Refusal:
    """Unique keys in order of first appearance. Overwrites the block's keys: a batch's two index arrays take the bytes
    of its keys, the inverse in the first half and the sources in the second."""
    if isinstance(examples, Refusal):
        return examples
    work.table[:] = 0
    num_unique = 0
    starts = examples.batch_starts
    batches_V = [examples.keys_V[a:b] for a, b in pairwise(starts)]
    for keys_V in batches_V:
        num_unique = _add_batch(keys_V, num_unique, work)
    work.begin_batches(num_unique)
    index = tuple(_index_batch(b, keys_V, examples, work) for b, keys_V in enumerate(batches_V))
    return Unique(examples.block, work.keys_U[:num_unique].copy(), index)


def _halves(keys_V: U64) -> tuple[I32, I32]:
    words = keys_V.view(np.int32)
    return words[: len(keys_V)], words[len(keys_V) :]


def _add_batch(keys_V: U64, num_unique: int, work: Workspace) -> int:
    done = 0
    while True:
        done, num_unique = unique_keys(keys_V, done, work.table, work.keys_U, num_unique, _halves(keys_V)[0])
        if done == len(keys_V):
            return num_unique
        work.grow_table(num_unique)


def _index_batch(batch: int, keys_V: U64, examples: Examples, work: Workspace) -> BatchIndex:
    inverse_V, source_V = _halves(keys_V)
    num_unique = compact_batch(inverse_V, batch, work.seen_U, work.local_U, work.unique_P, work.counts_P)
    starts_P = np.zeros(num_unique + 1, np.int32)
    np.cumsum(work.counts_P[:num_unique], out=starts_P[1:])
    group_sources(
        inverse_V, examples.bags[batch], work.single_S, work.multi_M, _num(examples.block, batch), starts_P[:-1].copy(),
        source_V,
    )  # fmt: skip
    return BatchIndex(work.unique_P[:num_unique].copy(), starts_P, inverse_V, source_V)


def _num(block: Block, batch: int) -> int:
    begin, past = block.batch_bounds(batch)
    return past - begin
