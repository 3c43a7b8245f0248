"""Keys of a run's blocks, by owner: the interface, and its implementation that reads files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pipeline.data.agenda import Agenda
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.records import I32, U64, Block, Examples, Rank
from pipeline.spans.passes import Leg
from pipeline.stages.dedup import KeyOwners
from pipeline.stages.unique_keys import KeyReader
from pipeline.storage.shards import ONE_SHARD, Shards, deal_shards

RECENT = 64
"""Number of blocks whose keys a trace caches, for the windows of several concurrent simulations."""


Extent = tuple[Leg, int, int]
"""Pass, first batch and number of batches of a block."""


class Trace:
    """Working sets of all blocks of a run."""

    agenda: Agenda
    """All blocks of the run."""
    shards: Sequence[Shards]
    """Shards of each worker, in the order of ranks."""
    keys: Callable[[Block], tuple[U64, ...]]
    """Returns the working set [U] of each worker, in the order in which that worker's `plan` receives it. The arrays
    must not be modified."""


def shards_of(num_shards: int, world: int) -> tuple[Shards, ...]:
    """Shards of each of `world` workers, all of which can reach every shard."""
    ranks = [str(rank) for rank in range(world)]
    owned = deal_shards(num_shards, ranks, dict.fromkeys(ranks, range(num_shards)))
    return tuple(Shards(num_shards, owned[rank]) for rank in ranks)


class Recent:
    """Cache of the keys of recent blocks, computed on first use."""

    def __init__(self, make: Callable[[Block], tuple[U64, ...]]) -> None:
        self._make = make
        self._recent: OrderedDict[Extent, tuple[U64, ...]] = OrderedDict()

    def __call__(self, block: Block) -> tuple[U64, ...]:
        extent = extent_of(block)
        if extent not in self._recent:
            self._recent[extent] = self._make(block)
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return self._recent[extent]


def extent_of(block: Block) -> Extent:
    """Extent of a block, regardless of its number."""
    return Leg.of(block), block.first_batch, block.num_batches


class FileTrace(Trace):
    """Trace of a run, read from the files of a workflow."""

    def __init__(self, reader: KeyReader, agenda: Agenda, shards: Sequence[Shards] = (ONE_SHARD,)) -> None:
        self.agenda, self.shards = agenda, shards
        self._reader, self._divide, self._table = reader, Divide(shards), KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
        self.keys = Recent(lambda block: self._divide(self._read(block)))

    def _read(self, block: Block) -> U64:
        """Unique keys of a block in the order in which the workers read them: those of the first worker's part come
        first."""
        world = len(self.shards)
        if world == 1:
            return self._reader.unique_keys(block)
        examples, num_single = self._reader.read(block), len(self._reader.source.layout.single_S)
        parts = (
            part_of(examples, batch, Rank(rank, world), num_single)
            for rank in range(world)
            for batch in range(block.num_batches)
        )
        return first_appearances(parts, self._table)


def part_of(examples: Examples, batch: int, rank: Rank, num_single: int) -> U64:
    """Keys of one worker's part of a batch, in the order in which that worker reads them."""
    begin, end = examples.block.batch_bounds(batch)
    size = end - begin
    first, last = rank.bounds(size)
    keys_V, bags_MB = examples.keys_V[examples.batch_starts[batch] :], examples.bags[batch]
    single = [keys_V[field * size + first : field * size + last] for field in range(num_single)]
    return np.concatenate([*single, *(keys_V[bag_B[first] : bag_B[last]] for bag_B in bags_MB)])


class Divide:
    """Division of keys among the owners of their shards."""

    def __init__(self, shards: Sequence[Shards]) -> None:
        owner = {shard: rank for rank, mine in enumerate(shards) for shard in mine.owned}
        self._owners = KeyOwners([owner[shard] for shard in range(shards[0].num)], len(shards))

    def __call__(self, keys_U: U64) -> tuple[U64, ...]:
        if self._owners.world == 1:
            return (keys_U,)
        owner_U = self._owners.of(keys_U)
        return tuple(keys_U[owner_U == rank] for rank in range(self._owners.world))


def first_appearances(parts: Iterable[U64], table: KeyTable) -> U64:
    """Distinct keys of all parts, in order of first appearance. The table is cleared first."""
    table.clear()
    for keys_V in parts:
        numbers_V: I32 = np.empty(len(keys_V), np.int32)
        table.add(keys_V, numbers_V)
    return table.keys_U.copy()
