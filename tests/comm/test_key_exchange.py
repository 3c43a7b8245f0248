from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.comm.group import Group, GroupSettings, Store
from pipeline.records import Block, KeyRequest, Rank, Refusal
from pipeline.worker.peers import exchange_keys, from_message, to_message

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
