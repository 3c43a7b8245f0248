"""Requests for keys and their rows to those who need them, and the sums of gradients back, against plain loops."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.blocks import crews, make_block
from support.runs.loopback import make_groups, together

from pipeline.comm.exchange import Exchange
from pipeline.comm.group import Group, GroupSettings, Store
from pipeline.device.device import RAM
from pipeline.kernels.key_table import KeyTable
from pipeline.machine.threads import Threads
from pipeline.records import Block, KeyRequest, Rank, Refusal
from pipeline.stages.unite import key_requests, unite
from pipeline.worker.peers import exchange_keys, from_message, to_message

NUM_WEIGHTS = 3


@pytest.fixture(scope="module")
def exchanges():
    """Of each number of workers; they are used for batch after batch, as in a run."""
    made = {}
    for world in range(1, 6):
        groups = make_groups(world)
        made[world] = groups, [Exchange(group, NUM_WEIGHTS, Threads(1), RAM) for group in groups]
    return made


def weight_of(keys):
    """[Q, C] of any keys, by the key alone."""
    return (np.array(keys, np.uint64)[:, None] % np.array([997, 1009, 1013], np.uint64)).astype(np.float32)


@settings(deadline=None, max_examples=25)
@given(crews(), st.integers(0, 2**32))
def test_workers_get_their_rows_and_owners_their_gradients(exchanges, crew, seed):
    owners, layout, parts = crew
    groups, ends = exchanges[owners.world]
    sent = [key_requests(part.unique, owners, layout.num_fields, False) for part in parts]
    block = make_block(1, len(parts[0].pairs))
    owned_keys = [unite(block, [of[owner] for of in sent], KeyTable()) for owner in range(owners.world)]
    for batch in range(block.num_batches):
        indexes = [part.unique.batches[batch] for part in parts]
        keys_W = [part.unique.keys_U[index.unique_P].tolist() for part, index in zip(parts, indexes, strict=True)]
        owned_W = [of.keys_U[of.row_requests[batch].index.unique_P].tolist() for of in owned_keys]
        grads_W = [
            np.random.default_rng(seed + rank).standard_normal((len(keys), NUM_WEIGHTS)).astype(np.float32)
            for rank, keys in enumerate(keys_W)
        ]
        before = [traffic(group) for group in groups]

        def step(rank, batch=batch, indexes=indexes, owned_W=owned_W, grads_W=grads_W):
            row_requests = owned_keys[rank].row_requests[batch]
            wanted = ends[rank].fetch(weight_of(owned_W[rank]), row_requests, indexes[rank]).copy()
            return wanted, ends[rank].push_gradients(grads_W[rank], row_requests, indexes[rank]).copy()

        found = together([partial(step, rank) for rank in range(owners.world)])
        for rank, (wanted_PC, sums_QC) in enumerate(found):
            np.testing.assert_array_equal(wanted_PC, weight_of(keys_W[rank]))
            np.testing.assert_array_equal(sums_QC, plain_sums(owned_W[rank], keys_W, grads_W))
            others = sum(indexes[rank].parts_W) - indexes[rank].parts_W[rank]
            asked_by_others = (
                sum(owned_keys[rank].row_requests[batch].parts_W) - owned_keys[rank].row_requests[batch].parts_W[rank]
            )
            spent = traffic(groups[rank]) - before[rank]
            assert spent.tolist() == [4 * NUM_WEIGHTS * asked_by_others, 4 * NUM_WEIGHTS * others]


def plain_sums(owned, keys_W, grads_W):
    """Worker by worker, in the order of their ranks."""
    sums_QC = np.zeros((len(owned), NUM_WEIGHTS), np.float32)
    for keys, grads_PC in zip(keys_W, grads_W, strict=True):
        for key, grad in zip(keys, grads_PC, strict=True):
            if key in owned:
                sums_QC[owned.index(key)] += grad
    return sums_QC


def traffic(group):
    return np.array([group.traffic[kind].num_bytes for kind in ("rows", "gradients")])


NUMBERS = st.integers(0, 2**31 - 1)
COUNTED = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=4)


def block_of(num_batches):
    return Block(0, "train", 0, 0, num_batches, 0, num_batches, 1, 0, False)


def key_request_of(keys, batches, counts_examples):
    positions, occurrences, examples_with_key = (
        tuple(np.array([entry[part] for entry in batch], np.int32) for batch in batches) for part in range(3)
    )
    none = tuple(np.empty(0, np.int32) for _ in batches)
    return KeyRequest(np.array(keys, np.uint64), positions, occurrences, examples_with_key if counts_examples else none)


def same(one, other):
    return all(
        len(a) == len(b) and all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))
        for a, b in (
            (getattr(one, part), getattr(other, part)) for part in ("positions", "occurrences", "examples_with_key")
        )
    ) and np.array_equal(one.keys_U, other.keys_U)  # fmt: skip


@given(
    st.lists(st.integers(0, 2**64 - 2), max_size=5), st.lists(COUNTED, min_size=1, max_size=4), st.booleans(),
)  # fmt: skip
def test_a_key_request_is_unpacked_as_it_was_packed(keys, batches, counts_examples):
    key_request = key_request_of(keys, batches, counts_examples)
    message = np.concatenate([np.zeros(3, np.uint8), to_message(key_request)])[3:]
    assert same(from_message(message, block_of(len(batches))), key_request)


def test_a_refusal_is_unpacked_with_its_message():
    block = block_of(2)
    assert from_message(to_message(Refusal(block, "window", "no röom")), block) == Refusal(block, "window", "no röom")


@pytest.mark.parametrize("world", [1, 2, 4])
def test_each_key_request_reaches_its_owner(world):
    store = Store("127.0.0.1", serves=True)
    block = block_of(1)

    def work(rank):
        group = Group(Store("127.0.0.1", store.port), "keys", Rank(rank, world), GroupSettings("lo", 20.0))
        sent = [key_request_of([rank, to][: to + 1], [[(rank, to, 1)] * rank], True) for to in range(world)]
        if rank == world - 1:
            sent[0] = Refusal(block, "window", "too large")
        return exchange_keys(block, sent, group)

    with ThreadPoolExecutor(world) as threads:
        received = list(threads.map(work, range(world)))
    for to in range(world):
        for rank in range(world):
            expected = key_request_of([rank, to][: to + 1], [[(rank, to, 1)] * rank], True)
            if (rank, to) == (world - 1, 0):
                assert received[to][rank] == Refusal(block, "window", "too large")
            else:
                assert same(received[to][rank], expected)
