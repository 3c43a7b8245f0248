"""Rows moved by slot, against NumPy's own indexing, and requests numbered by key."""

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
from pipeline.kernels.rows import gather_rows, gather_rows_reference, scatter_rows, scatter_rows_reference
from pipeline.machine.limits import aligned_empty


@st.composite
def moves(draw):
    num_slots, num_words = (
        draw(st.integers(0, 40)),
        draw(st.one_of(st.integers(1, 70), st.sampled_from([8, 16, 56, 64]))),
    )
    at = draw(st.lists(st.integers(0, num_slots - 1), unique=True, max_size=num_slots)) if num_slots else []
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Aligned or not, of whole vectors or not: streamed, or copied word by word.
    offset = draw(st.sampled_from([0, 0, 1, 4]))
    slab, rows = (aligned_empty(n * num_words + offset, np.uint32)[offset:] for n in (num_slots, len(at)))
    slab[:], rows[:] = (rng.integers(0, 2**32, len(words), np.uint32) for words in (slab, rows))
    return slab.reshape(num_slots, num_words), np.array(at, np.int32), rows.reshape(len(at), num_words)


@settings(deadline=None, max_examples=60)
@given(moves())
def test_gathered_rows_match_the_reference(move):
    slab, at, rows = move
    expected = rows.copy()
    gather_rows(slab, at, rows)
    gather_rows_reference(slab, at, expected)
    np.testing.assert_array_equal(rows, expected)


@settings(deadline=None, max_examples=60)
@given(moves())
def test_scattered_rows_touch_no_other_slot(move):
    slab, at, rows = move
    expected = slab.copy()
    scatter_rows(slab, at, rows)
    scatter_rows_reference(expected, at, rows)
    np.testing.assert_array_equal(slab, expected)


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
