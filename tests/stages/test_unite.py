"""What workers ask of each other, against plain dictionaries of who needs which key how often."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.blocks import Part, crews, make_block, make_examples

from pipeline.kernels.key_table import KeyTable
from pipeline.records import FieldLayout, Refusal
from pipeline.stages.dedup import KeyOwners
from pipeline.stages.unite import key_requests, unite
from pipeline.storage.shards import shard_of


def in_order(keys):
    return list(dict.fromkeys(keys))


@settings(deadline=None, max_examples=60)
@given(crews())
def test_the_keys_of_a_batch_are_ordered_by_owner(crew):
    owners, _, parts = crew
    for part in parts:
        for pairs, index in zip(part.pairs, part.unique.batches, strict=True):
            first_seen = in_order(key for key, _ in pairs)
            owner = dict(zip(first_seen, owners.of(np.array(first_seen, np.uint64)).tolist(), strict=True))
            keys = part.unique.keys_U[index.unique_P].tolist()
            assert keys == sorted(first_seen, key=owner.__getitem__)
            assert index.parts_W == tuple(list(owner.values()).count(rank) for rank in range(owners.world))
            assert [keys[at] for at in index.inverse_V] == [key for key, _ in pairs]


@settings(deadline=None, max_examples=60)
@given(crews(), st.booleans())
def test_an_owner_is_asked_for_the_keys_and_counts_of_parts(crew, counts_examples):
    owners, layout, parts = crew
    sent = [key_requests(part.unique, owners, layout.num_fields, counts_examples) for part in parts]
    block = make_block(1, len(parts[0].pairs))
    for owner in range(owners.world):
        owned_keys = unite(block, [of_rank[owner] for of_rank in sent], KeyTable())
        needed = {key for part in parts for pairs in part.pairs for key, _ in pairs}
        owned = {key for key in needed if owners.of(np.array([key], np.uint64))[0] == owner}
        assert owned_keys.block is block
        assert sorted(owned_keys.keys_U.tolist()) == sorted(owned)
        for batch, row_requests in enumerate(owned_keys.row_requests):
            check_asked(
                owned_keys.keys_U, row_requests, [part.pairs[batch] for part in parts], parts, batch, owner, owned
            )
            assert len(row_requests.examples_with_key_P) == (len(row_requests.index.unique_P) if counts_examples else 0)


def check_asked(keys_U, row_requests, pairs_W, parts, batch, owner, owned):
    """Requests are each worker's unique keys, in its own order, rank by rank."""
    requests = []
    for part, num in zip(parts, row_requests.parts_W, strict=True):
        index = part.unique.batches[batch]
        begin = sum(index.parts_W[:owner])
        wanted = part.unique.keys_U[index.unique_P[begin : begin + index.parts_W[owner]]].tolist()
        assert num == len(wanted)
        requests += wanted
    index = row_requests.index
    keys = keys_U[index.unique_P].tolist()
    assert keys == in_order(requests)
    assert [keys[at] for at in index.inverse_V] == requests
    grouped = [[r for r, key in enumerate(requests) if key == of] for of in keys]
    assert index.source_V.tolist() == [r for group in grouped for r in group], "not in the order of ranks"
    assert np.diff(index.starts_P).tolist() == [len(group) for group in grouped]
    occurrences = Counter(key for pairs in pairs_W for key, _ in pairs if key in owned)
    examples_with_key = Counter(key for pairs in pairs_W for key, _ in set(pairs) if key in owned)
    assert np.diff(row_requests.starts_P).tolist() == [occurrences[key] for key in keys]
    assert row_requests.starts_P[0] == 0
    if len(row_requests.examples_with_key_P):
        assert row_requests.examples_with_key_P.tolist() == [examples_with_key[key] for key in keys]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 2**32))
def test_the_owner_of_a_key_is_the_owner_of_its_shard(owner_of_shard, seed):
    keys_U = np.random.default_rng(seed).integers(0, 2**64, 50, np.uint64)
    expected = [owner_of_shard[shard] for shard in shard_of(keys_U, len(owner_of_shard)).tolist()]
    assert KeyOwners(owner_of_shard, 5).of(keys_U).tolist() == expected


def test_key_tables_keep_nothing_of_the_block_before():
    layout, owners = FieldLayout((0,), (1,), (True,)), KeyOwners([0], 1)
    union = KeyTable()
    for seed, num_examples in ((1, 40), (2, 3), (3, 90)):
        examples = make_examples(seed, 7, num_examples, layout, 50)
        part = Part(examples, layout, owners)
        owned_keys = unite(examples.block, key_requests(part.unique, owners, 2, True), union)
        assert owned_keys.keys_U.tolist() == in_order(part.unique.keys_U.tolist())


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_block_that_one_worker_could_not_read_is_refused(who):
    layout, owners = FieldLayout((0,), (), ()), KeyOwners([0, 1, 2], 3)
    part = Part(make_examples(0, 3, 6, layout, 9), layout, owners)
    received = [key_requests(part.unique, owners, 1, False)[0]] * 3
    received[who] = refusal = Refusal(make_block(3, 6), "window", "too small")
    assert unite(make_block(3, 6), received, KeyTable()) is refusal
