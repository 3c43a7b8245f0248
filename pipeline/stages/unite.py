"""unite: the keys of its shards that any worker needs for a block, from the parcels that all of them sent.

A worker's parcel for an owner leaves when its `dedup` is through; its own one among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipeline.kernels.count_examples import count_examples
from pipeline.kernels.dedup import group_sources
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.records import I32, I64, Asked, BatchIndex, Block, Parcel, Refusal, Unique, United
from pipeline.stages.dedup import Owners

STOPPED_ELSEWHERE = "another worker planned no further"
"""Why a worker refuses a block, where the reason is not its own."""
ONE_FIELD, NO_FIELDS = np.zeros(1, np.int32), np.zeros(0, np.int32)


class Union:
    """Tables that `unite` uses again for every block."""

    def __init__(self) -> None:
        self.block = KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
        self.batch = KeyTable()


def parcels(unique: Unique, owners: Owners, num_fields: int, counts_holders: bool) -> list[Parcel]:
    """Return what each owner is sent, in the order of ranks. `counts_holders`: an example may hold a key more than
    once, and the optimizer asks how many examples do."""
    owner_U = owners.of(unique.keys_U)
    starts_W = np.cumsum([0, *np.bincount(owner_U, minlength=owners.world)])
    order_U = np.argsort(owner_U, kind="stable")
    place_U = np.empty(len(owner_U), np.int32)
    place_U[order_U] = np.arange(len(owner_U)) - starts_W[owner_U[order_U]]
    keys_U = unique.keys_U[order_U]
    counted = [_count(index, num_fields, counts_holders) for index in unique.batches]
    cuts = [np.cumsum([0, *index.parts_W]) for index in unique.batches]
    sent = []
    for owner, (begin, past) in enumerate(pairwise(starts_W)):
        parts = [slice(cut[owner], cut[owner + 1]) for cut in cuts]
        sent.append(
            Parcel(
                keys_U[begin:past],
                tuple(place_U[index.unique_P[part]] for index, part in zip(unique.batches, parts, strict=True)),
                tuple(occurrences[part] for (occurrences, _), part in zip(counted, parts, strict=True)),
                tuple(holders[part] for (_, holders), part in zip(counted, parts, strict=True)),
            )
        )
    return sent


def _count(index: BatchIndex, num_fields: int, counts_holders: bool) -> tuple[I32, I32]:
    """Count, in a worker's part of a batch [P], occurrences of each key, and examples that hold it, if so asked."""
    occurrences_P = np.diff(index.starts_P)
    holders_P = np.empty(len(occurrences_P) if counts_holders else 0, np.int32)
    if counts_holders:
        count_examples(index.source_V, index.starts_P, num_fields, holders_P)
    return occurrences_P, holders_P


def unite(block: Block, received: Sequence[Parcel | Refusal | None], union: Union) -> United | Refusal:
    """Unite parcels, in the order of ranks, to the keys of an owner. A block that a worker could not read, or did not
    read any more, is refused everywhere."""
    for parcel in received:
        if not isinstance(parcel, Parcel):
            return parcel or Refusal(block, "pause", STOPPED_ELSEWHERE)
    sent = [parcel for parcel in received if isinstance(parcel, Parcel)]
    union.block.clear()
    numbers = []
    for parcel in sent:
        numbers_U = np.empty(len(parcel.keys_U), np.int32)
        union.block.add(parcel.keys_U, numbers_U)
        numbers.append(numbers_U)
    keys_U = union.block.keys_U.copy()
    asked = []
    for batch in range(block.num_batches):
        wanted = [numbers_U[parcel.positions[batch]] for parcel, numbers_U in zip(sent, numbers, strict=True)]
        requests_R = np.concatenate(wanted)
        index = _index(requests_R, keys_U[requests_R], union.batch)
        counts = np.concatenate([parcel.occurrences[batch] for parcel in sent])
        starts_P = np.zeros(len(index.unique_P) + 1, np.int32)
        np.cumsum(_sum_by_key(index, counts), out=starts_P[1:])
        holders = np.concatenate([parcel.holders[batch] for parcel in sent])
        holders_P = _sum_by_key(index, holders).astype(np.int32) if len(holders) else holders
        asked.append(Asked(index, tuple(map(len, wanted)), starts_P, holders_P))
    return United(block, keys_U, tuple(asked))


def _sum_by_key(index: BatchIndex, counts_R: I32) -> I64:
    return np.bincount(index.inverse_V, counts_R, minlength=len(index.unique_P)).astype(np.int64)


def _index(requests_R: I32, keys_R: np.ndarray, table: KeyTable) -> BatchIndex:
    """The keys of requests, each a position among the block's, as those of a batch with one field."""
    inverse_R = np.empty(len(requests_R), np.int32)
    table.clear()
    table.add(keys_R, inverse_R)
    unique_P = np.empty(len(table.keys_U), np.int32)
    unique_P[inverse_R] = requests_R
    starts_P, source_R = np.empty(len(unique_P) + 1, np.int32), np.empty(len(requests_R), np.int32)
    bags_MB = np.empty((0, len(requests_R) + 1), np.int32)
    group_sources(inverse_R, bags_MB, ONE_FIELD, NO_FIELDS, len(requests_R), starts_P, source_R)
    return BatchIndex(unique_P, starts_P, inverse_R, source_R)
