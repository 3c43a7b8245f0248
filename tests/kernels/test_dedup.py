"""Unique keys, a batch's own index into them, and the order in which gradients will be summed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_batches import batches, make_batch

from pipeline.kernels.dedup import (
    bag_scale,
    compact_batch,
    group_sources,
    refill_table,
    sources_reference,
    unique_keys,
    unique_keys_reference,
)
from pipeline.records import TILE

# Many equal low bits, so that probing is long and wraps around; keys 0 and the largest allowed one among them.
KEYS = st.one_of(
    st.integers(0, 6),
    st.integers(0, 6).map(lambda k: k << 20),
    st.integers(2**64 - 9, 2**64 - 2),
    st.integers(0, 2**63),
)


def unique(keys, entries, in_place=False):
    """The kernel as `dedup` calls it: whenever it stops early, a table twice as large is refilled."""
    keys_V = np.array(keys, np.uint64)
    inverse_V = keys_V.view(np.int32)[: len(keys_V)] if in_place else np.full(len(keys_V), -1, np.int32)
    table, keys_U = np.zeros(entries, np.int32), np.empty(entries // 2, np.uint64)
    done = num_unique = stops = 0
    while True:
        done, num_unique = unique_keys(keys_V, done, table, keys_U, num_unique, inverse_V)
        if done == len(keys_V):
            return keys_U[:num_unique].tolist(), inverse_V.tolist(), stops
        stops += 1
        table = np.zeros(2 * len(table), np.int32)
        keys_U = np.concatenate([keys_U, np.empty_like(keys_U)])
        refill_table(keys_U, num_unique, table)


@settings(deadline=None, max_examples=100)
@given(st.lists(KEYS, max_size=60), st.sampled_from([2, 4, 8, 128]), st.booleans())
def test_unique_keys_differ_from_the_reference(keys, entries, in_place):
    keys_U, inverse_V, _ = unique(keys, entries, in_place)
    assert (keys_U, inverse_V) == unique_keys_reference(keys)


def test_the_table_that_fills_up_in_the_middle_of_a_batch_loses_what_was_done():
    keys = [9, 9, 1, 9, 2, 3, 9, 4, 1]
    keys_U, inverse_V, stops = unique(keys, 4)
    assert stops == 2
    assert keys_U == [9, 1, 2, 3, 4]
    assert [keys_U[i] for i in inverse_V] == keys


def test_a_table_half_full_turns_a_known_key_away_or_takes_a_new_one():
    keys_V = np.array([7, 8, 7, 8, 5, 7], np.uint64)
    table, keys_U, inverse_V = np.zeros(4, np.int32), np.empty(2, np.uint64), np.full(6, -1, np.int32)
    assert unique_keys(keys_V, 0, table, keys_U, 0, inverse_V) == (4, 2)
    assert inverse_V.tolist() == [0, 1, 0, 1, -1, -1]


def test_several_batches_share_one_table_but_number_keys_anew():
    table, keys_U = np.zeros(64, np.int32), np.empty(32, np.uint64)
    one, two = np.array([5, 6, 5], np.uint64), np.array([6, 7, 7], np.uint64)
    inverse = np.empty(3, np.int32)
    assert unique_keys(one, 0, table, keys_U, 0, inverse) == (3, 2)
    assert unique_keys(two, 0, table, keys_U, 2, inverse) == (3, 3)
    assert keys_U[:3].tolist() == [5, 6, 7]
    assert inverse.tolist() == [1, 2, 2]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 9), max_size=20), min_size=1, max_size=4))
def test_a_batch_remembers_keys_of_the_batch_before(inverses):
    seen_U = np.full(10, -1, np.int32)
    local_U, unique_P, counts_P = np.empty((3, 10), np.int32)
    for batch, inverse in enumerate(inverses):
        inverse_V = np.array(inverse, np.int32)
        num_unique = compact_batch(inverse_V, batch, seen_U, local_U, unique_P, counts_P)
        keys, own = unique_keys_reference(inverse)
        assert unique_P[:num_unique].tolist() == keys
        assert inverse_V.tolist() == own
        assert counts_P[:num_unique].tolist() == [inverse.count(key) for key in keys]


def grouped(batch):
    expected, starts = batch.sources()
    got = np.full(len(batch.inverse_V), -1, np.int32)
    group_sources(
        batch.inverse_V, batch.bags_MB, batch.single_S, batch.multi_M, batch.num_examples, starts[:-1].copy(), got
    )
    return got, expected, starts


@settings(deadline=None, max_examples=60)
@given(batches())
def test_sources_are_grouped_in_another_order_than_the_reference_says(batch):
    got, expected, _ = grouped(batch)
    np.testing.assert_array_equal(got, expected)


@settings(deadline=None, max_examples=30)
@given(batches())
def test_the_reference_leaves_out_an_occurrence_or_breaks_the_order_of_the_tiles(batch):
    """The order once more, from its words in `BatchIndex`: by tile, then by field, then by example."""
    source_V, starts_P = batch.sources()
    turn = {int(f): n for n, f in enumerate([*batch.single_S, *batch.multi_M])}
    for p in range(batch.num_unique):
        example, field = np.divmod(source_V[starts_P[p] : starts_P[p + 1]], batch.num_fields)
        order = [(b // TILE, turn[f], b) for b, f in zip(example.tolist(), field.tolist(), strict=True)]
        assert order == sorted(order)
    counts = np.bincount(batch.inverse_V, minlength=batch.num_unique)
    np.testing.assert_array_equal(np.diff(starts_P), counts)


def test_a_key_of_two_fields_is_summed_example_by_example():
    """One key everywhere, two fields, two tiles: field 0 of tile 0, field 1 of tile 0, then tile 1 likewise."""
    batch = make_batch(0, TILE + 2, num_single=2, num_multi=0, num_keys=1)
    first, second = np.arange(TILE), np.arange(TILE, TILE + 2)
    expected = np.concatenate([2 * first, 2 * first + 1, 2 * second, 2 * second + 1])
    np.testing.assert_array_equal(grouped(batch)[0], expected)


def test_an_empty_bag_gives_an_occurrence():
    bags_MB = np.array([[0, 0, 2, 2]], np.int32)
    inverse_V = np.array([0, 0], np.int32)
    assert sources_reference(inverse_V, bags_MB, [], [0], 3) == [[1, 1]]
    source_V = np.full(2, -1, np.int32)
    none = np.empty(0, np.int32)
    group_sources(inverse_V, bags_MB, none, np.array([0], np.int32), 3, np.array([0], np.int32), source_V)
    assert source_V.tolist() == [1, 1]


@pytest.mark.parametrize("mean", [False, True])
def test_the_gradient_of_a_mean_is_not_divided_by_the_length_of_its_bag(mean):
    bags_MB = np.array([[0, 0, 1, 4], [4, 6, 6, 7]], np.int32)
    scale = bag_scale(bags_MB, (2, 0), (mean, False), 3).reshape(3, 3)
    expected = np.ones((3, 3), np.float32)
    if mean:
        expected[:, 2] = [1, 1, np.float32(1) / np.float32(3)]
    np.testing.assert_array_equal(scale, expected)
    assert scale.dtype == np.float32
