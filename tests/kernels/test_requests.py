"""Keys in the order of their owners, and requests by key."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.requests import (
    number_requests,
    number_requests_reference,
    order_by_owner,
    order_by_owner_reference,
    sum_by_key,
    sum_by_key_reference,
)

NUMBERS = st.lists(st.integers(0, 6), max_size=60)


@settings(deadline=None, max_examples=40)
@given(NUMBERS)
def test_keys_of_one_owner_keep_their_order(owners):
    owner = np.array(owners, np.int64)
    ends, order, place = np.empty(7, np.int64), np.empty(len(owner), np.int32), np.empty(len(owner), np.int32)
    order_by_owner(owner, ends, order, place)
    assert order.tolist() == order_by_owner_reference(owner)
    assert order[place].tolist() == list(range(len(owner)))
    assert ends.tolist() == np.cumsum(np.bincount(owner, minlength=7)).tolist()


@settings(deadline=None, max_examples=40)
@given(NUMBERS, st.integers(0, 2**31))
def test_requests_are_numbered_by_key_and_their_counts_summed(requested, seed):
    requests, number = np.array(requested, np.int32), np.full(7, -1, np.int32)
    counts = np.random.default_rng(seed).integers(0, 100, len(requests), np.int32)
    inverse, unique = np.empty_like(requests), np.empty_like(requests)
    num = number_requests(requests, number, inverse, unique)
    assert (unique[:num].tolist(), inverse.tolist()) == number_requests_reference(requests)
    assert number.tolist() == [-1] * 7, "left for the next batch"
    sums = np.empty(num, np.int32)
    sum_by_key(inverse, counts, sums)
    assert sums.tolist() == sum_by_key_reference(inverse, counts)
