"""unite: merge the key requests of all workers into the keys of a worker's shards that any worker needs for a block.

A worker can send its key request to an owner (including itself) as soon as its `dedup` of the block is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipeline.kernels.dedup import group_sources
from pipeline.kernels.key_table import KeyTable
from pipeline.kernels.requests import count_examples, number_requests, sum_by_key
from pipeline.records import I32, BatchIndex, Block, KeyRequest, OwnedKeys, Refusal, RowRequests, Unique
from pipeline.stages.dedup import KeyOwners

STOPPED_ELSEWHERE = "another worker stopped planning"
"""Message of a refusal that another worker caused."""
ONE_FIELD, NO_FIELDS = np.zeros(1, np.int32), np.zeros(0, np.int32)


def key_requests(unique: Unique, owners: KeyOwners, num_fields: int, counts_examples: bool) -> list[KeyRequest]:
    """Make the key request to each owner, in rank order. `counts_examples`: count the examples that contain each key,
    which is needed if an example may contain a key twice and the optimizer uses that count."""
    order_U, place_U, parts_W = owners.order(unique.keys_U)
    starts_W = np.cumsum([0, *parts_W])
    keys_U = unique.keys_U[order_U]
    counted = [_count(index, num_fields, counts_examples) for index in unique.batches]
    cuts = [np.cumsum([0, *index.parts_W]) for index in unique.batches]
    sent = []
    for owner, (begin, end) in enumerate(pairwise(starts_W)):
        parts = [slice(cut[owner], cut[owner + 1]) for cut in cuts]
        sent.append(
            KeyRequest(
                keys_U[begin:end],
                tuple(
                    place_U[index.unique_P[part]] - np.int32(begin)
                    for index, part in zip(unique.batches, parts, strict=True)
                ),
                tuple(occurrences[part] for (occurrences, _), part in zip(counted, parts, strict=True)),
                tuple(examples_with_key[part] for (_, examples_with_key), part in zip(counted, parts, strict=True)),
            )
        )
    return sent


def _count(index: BatchIndex, num_fields: int, counts_examples: bool) -> tuple[I32, I32]:
    """Count, in a worker's part of a batch, the occurrences of each key [P] and, if `counts_examples`, the examples
    that contain it [P] (else an empty array)."""
    occurrences_P = np.diff(index.starts_P)
    examples_with_key_P = np.empty(len(occurrences_P) if counts_examples else 0, np.int32)
    if counts_examples:
        count_examples(index.source_V, index.starts_P, num_fields, examples_with_key_P, index.lists_LB)
    return occurrences_P, examples_with_key_P


def unite(block: Block, received: Sequence[KeyRequest | Refusal], union: KeyTable) -> OwnedKeys | Refusal:
    """Merge the key requests of all workers, in rank order, into the owner's working set. Refuses the block if a worker
    refused it or stopped before reading it. `union` is reused for every block."""
    for key_request in received:
        if isinstance(key_request, Refusal):
            return key_request
    sent = [key_request for key_request in received if isinstance(key_request, KeyRequest)]
    union.clear()
    numbers = []
    for key_request in sent:
        numbers_U = np.empty(len(key_request.keys_U), np.int32)
        union.add(key_request.keys_U, numbers_U)
        numbers.append(numbers_U)
    keys_U = union.keys_U.copy()
    unnumbered_U = np.full(len(keys_U), -1, np.int32)
    row_requests = []
    for batch in range(block.num_batches):
        wanted = [numbers_U[key_request.positions[batch]] for key_request, numbers_U in zip(sent, numbers, strict=True)]
        index = _index(np.concatenate(wanted), unnumbered_U)
        counts_P = _sum_by_key(index, [key_request.occurrences[batch] for key_request in sent])
        starts_P = np.zeros(len(counts_P) + 1, np.int32)
        np.cumsum(counts_P, out=starts_P[1:])
        examples_with_key = [key_request.examples_with_key[batch] for key_request in sent]
        examples_with_key_P = (
            _sum_by_key(index, examples_with_key) if sum(map(len, examples_with_key)) else counts_P[:0]
        )
        row_requests.append(RowRequests(index, tuple(map(len, wanted)), starts_P, examples_with_key_P))
    return OwnedKeys(block, keys_U, tuple(row_requests))


def _sum_by_key(index: BatchIndex, counts: Sequence[I32]) -> I32:
    sums_P = np.empty(len(index.unique_P), np.int32)
    sum_by_key(index.inverse_V, np.concatenate(counts), sums_P)
    return sums_P


def _index(requests_R: I32, unnumbered_U: I32) -> BatchIndex:
    """Index the requested keys as a batch with one field. `requests_R`: positions of the keys in the block's keys. For
    `unnumbered_U` see `number_requests`."""
    inverse_R, unique_R = np.empty(len(requests_R), np.int32), np.empty(len(requests_R), np.int32)
    unique_P = unique_R[: number_requests(requests_R, unnumbered_U, inverse_R, unique_R)].copy()
    starts_P, source_R = np.empty(len(unique_P) + 1, np.int32), np.empty(len(requests_R), np.int32)
    bags_MB = np.empty((0, len(requests_R) + 1), np.int32)
    group_sources(inverse_R, bags_MB, ONE_FIELD, NO_FIELDS, len(requests_R), starts_P, source_R)
    return BatchIndex(unique_P, starts_P, inverse_R, source_R)
