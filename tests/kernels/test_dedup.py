"""The index of a batch into unique keys, and the order in which gradients will be summed."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.batches import batches

from pipeline.kernels.dedup import (
    drop_repeats,
    drop_repeats_reference,
    group_sources,
    renumber,
    sources_reference,
    unique_keys,
)
from pipeline.records import RESERVED, TILE


def test_a_run_begins_only_where_all_its_keys_have_room():
    """Room for two: a run of three might bring three new keys, one of two may go ahead."""
    table, keys_U = np.zeros(4, np.uint32), np.empty(3, np.uint64)
    inverse_V = np.full(3, -1, np.int32)
    assert unique_keys(np.array([7, 7, 7], np.uint64), 0, table, 1, keys_U, 0, inverse_V) == (0, 0)
    assert inverse_V.tolist() == [-1, -1, -1]
    assert unique_keys(np.array([7, 8], np.uint64), 0, table, 1, keys_U, 0, inverse_V) == (2, 2)
    assert inverse_V.tolist() == [0, 1, -1]


def test_each_number_is_replaced_once_in_place():
    own_V = np.array([0, 2, 2, 1], np.int32)
    renumber(own_V, np.array([2, 0, 1], np.int32), own_V)
    assert own_V.tolist() == [2, 1, 1, 0]


def grouped(batch):
    expected, starts = batch.sources()
    got, got_starts = np.full(len(batch.inverse_V), -1, np.int32), np.full(len(starts), -1, np.int32)
    group_sources(
        batch.inverse_V, batch.bags_MB, batch.single_S, batch.multi_M, batch.num_examples, got_starts, got
    )  # fmt: skip
    return got, expected, got_starts, starts


@settings(deadline=None, max_examples=60)
@given(batches(2))
def test_sources_are_grouped_in_the_order_of_the_reference(batch):
    got, expected, got_starts, starts = grouped(batch)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(got_starts, starts)


@settings(deadline=None, max_examples=30)
@given(batches())
def test_the_reference_keeps_occurrences_in_tile_order(batch):
    """The order once more, from its words in `BatchIndex`: by tile, then by field, then by example."""
    source_V, starts_P = batch.sources()
    turn = {int(f): n for n, f in enumerate([*batch.single_S, *batch.multi_M])}
    for p in range(batch.num_unique):
        example, field = np.divmod(source_V[starts_P[p] : starts_P[p + 1]], batch.num_fields)
        order = [(b // TILE, turn[f], b) for b, f in zip(example.tolist(), field.tolist(), strict=True)]
        assert order == sorted(order)
    counts = np.bincount(batch.inverse_V, minlength=batch.num_unique)
    np.testing.assert_array_equal(np.diff(starts_P), counts)


def test_values_of_sequences_follow_those_of_all_fields():
    """Two examples with a field each, and lists of the same key: [2, 2] values, and [0, 1]."""
    bags_MB = np.array([[2, 4, 6], [6, 6, 7]], np.int32)
    assert sources_reference(np.zeros(7, np.int32), bags_MB, [0], [], 2) == [[0, 1, 2, 3, 4, 5, 6]]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 2**64 - 2), min_size=1, max_size=60),
    st.lists(st.integers(0, 59), max_size=60),
    st.sampled_from([1, 2, 8]),
)
def test_dropping_repeats_leaves_each_key(keys, places, num_recent):
    keys_N, at_V = np.array(keys, np.uint64), np.array([at % len(keys) for at in places], np.int64)
    kept_V = np.empty(len(at_V) + 1, np.uint64)
    num = drop_repeats(keys_N, at_V, np.full(num_recent, RESERVED, np.uint64), kept_V)
    assert kept_V[:num].tolist() == drop_repeats_reference(keys_N, at_V, num_recent)
    assert set(kept_V[:num].tolist()) == set(keys_N[at_V].tolist())
