"""unite: the keys of a worker's own shards that any worker needs for a block, from the key requests of all workers.

A worker can send its key request to an owner (itself included) as soon as its `dedup` of the block is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipeline.kernels.count_examples import count_examples
from pipeline.kernels.dedup import group_sources
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.records import I32, I64, BatchIndex, Block, KeyRequest, OwnedKeys, Refusal, RowRequests, Unique
from pipeline.stages.dedup import KeyOwners

STOPPED_ELSEWHERE = "another worker stopped planning"
"""Message of a refusal whose reason lies with another worker."""
ONE_FIELD, NO_FIELDS = np.zeros(1, np.int32), np.zeros(0, np.int32)


class UniteTables:
    """Tables that `unite` reuses for every block."""

    def __init__(self) -> None:
        self.block = KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
        self.batch = KeyTable()


def key_requests(unique: Unique, owners: KeyOwners, num_fields: int, counts_examples: bool) -> list[KeyRequest]:
    """Make the key request to each owner, in the order of ranks. `counts_examples`: count the examples that hold each
    key, which is needed if an example may hold a key twice and the optimizer uses that count."""
    owner_U = owners.of(unique.keys_U)
    starts_W = np.cumsum([0, *np.bincount(owner_U, minlength=owners.world)])
    order_U = np.argsort(owner_U, kind="stable")
    place_U = np.empty(len(owner_U), np.int32)
    place_U[order_U] = np.arange(len(owner_U)) - starts_W[owner_U[order_U]]
    keys_U = unique.keys_U[order_U]
    counted = [_count(index, num_fields, counts_examples) for index in unique.batches]
    cuts = [np.cumsum([0, *index.parts_W]) for index in unique.batches]
    sent = []
    for owner, (begin, end) in enumerate(pairwise(starts_W)):
        parts = [slice(cut[owner], cut[owner + 1]) for cut in cuts]
        sent.append(
            KeyRequest(
                keys_U[begin:end],
                tuple(place_U[index.unique_P[part]] for index, part in zip(unique.batches, parts, strict=True)),
                tuple(occurrences[part] for (occurrences, _), part in zip(counted, parts, strict=True)),
                tuple(examples_with_key[part] for (_, examples_with_key), part in zip(counted, parts, strict=True)),
            )
        )
    return sent


def _count(index: BatchIndex, num_fields: int, counts_examples: bool) -> tuple[I32, I32]:
    """Count, in a worker's part of a batch, the occurrences of each key [P] and, if `counts_examples`, the examples
    that hold it [P] (else an empty array)."""
    occurrences_P = np.diff(index.starts_P)
    examples_with_key_P = np.empty(len(occurrences_P) if counts_examples else 0, np.int32)
    if counts_examples:
        count_examples(index.source_V, index.starts_P, num_fields, examples_with_key_P)
    return occurrences_P, examples_with_key_P


def unite(block: Block, received: Sequence[KeyRequest | Refusal | None], union: UniteTables) -> OwnedKeys | Refusal:
    """Unite the key requests of all workers, in the order of ranks, into the owner's working set. If a worker refused
    the block, or stopped before reading it, the block is refused."""
    for key_request in received:
        if not isinstance(key_request, KeyRequest):
            return key_request or Refusal(block, "pause", STOPPED_ELSEWHERE)
    sent = [key_request for key_request in received if isinstance(key_request, KeyRequest)]
    union.block.clear()
    numbers = []
    for key_request in sent:
        numbers_U = np.empty(len(key_request.keys_U), np.int32)
        union.block.add(key_request.keys_U, numbers_U)
        numbers.append(numbers_U)
    keys_U = union.block.keys_U.copy()
    row_requests = []
    for batch in range(block.num_batches):
        wanted = [numbers_U[key_request.positions[batch]] for key_request, numbers_U in zip(sent, numbers, strict=True)]
        requests_R = np.concatenate(wanted)
        index = _index(requests_R, keys_U[requests_R], union.batch)
        counts = np.concatenate([key_request.occurrences[batch] for key_request in sent])
        starts_P = np.zeros(len(index.unique_P) + 1, np.int32)
        np.cumsum(_sum_by_key(index, counts), out=starts_P[1:])
        examples_with_key = np.concatenate([key_request.examples_with_key[batch] for key_request in sent])
        examples_with_key_P = (
            _sum_by_key(index, examples_with_key).astype(np.int32) if len(examples_with_key) else examples_with_key
        )
        row_requests.append(RowRequests(index, tuple(map(len, wanted)), starts_P, examples_with_key_P))
    return OwnedKeys(block, keys_U, tuple(row_requests))


def _sum_by_key(index: BatchIndex, counts_R: I32) -> I64:
    return np.bincount(index.inverse_V, counts_R, minlength=len(index.unique_P)).astype(np.int64)


def _index(requests_R: I32, keys_R: np.ndarray, table: KeyTable) -> BatchIndex:
    """Index the requested keys as a batch with one field. `requests_R`: positions of the keys in the block's keys."""
    inverse_R = np.empty(len(requests_R), np.int32)
    table.clear()
    table.add(keys_R, inverse_R)
    unique_P = np.empty(len(table.keys_U), np.int32)
    unique_P[inverse_R] = requests_R
    starts_P, source_R = np.empty(len(unique_P) + 1, np.int32), np.empty(len(requests_R), np.int32)
    bags_MB = np.empty((0, len(requests_R) + 1), np.int32)
    group_sources(inverse_R, bags_MB, ONE_FIELD, NO_FIELDS, len(requests_R), starts_P, source_R)
    return BatchIndex(unique_P, starts_P, inverse_R, source_R)
