"""Unique keys, a batch's own index into them, and the order in which gradients will be summed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.batches import batches

from pipeline.kernels.dedup import (
    RUN,
    drop_repeats,
    drop_repeats_reference,
    group_sources,
    refill_table,
    renumber,
    sources_reference,
    unique_keys,
    unique_keys_reference,
)
from pipeline.records import RESERVED, TILE

# Many equal low bits, so that probing is long and wraps around; keys 0 and the largest allowed one among them.
KEYS = st.one_of(
    st.integers(0, 6),
    st.integers(0, 6).map(lambda k: k << 20),
    st.integers(2**64 - 9, 2**64 - 2),
    st.integers(0, 2**63),
)


def tables(num_keys):
    """A table for `num_keys` keys with as few entries as can be, and the keys' array, with its one place more."""
    entries = 2
    while entries <= num_keys:
        entries *= 2
    return np.zeros(entries, np.uint32), np.empty(num_keys + 1, np.uint64)


def unique(keys, num_keys, in_place=False, base=1):
    """The kernel as `KeyTable` calls it: whenever it stops early, a table twice as large is refilled."""
    keys_V = np.array(keys, np.uint64)
    inverse_V = keys_V.view(np.int32)[: len(keys_V)] if in_place else np.full(len(keys_V), -1, np.int32)
    table, keys_U = tables(num_keys)
    done = num_unique = stops = 0
    while True:
        done, num_unique = unique_keys(keys_V, done, table, base, keys_U, num_unique, inverse_V)
        if done == len(keys_V):
            return keys_U[:num_unique].tolist(), inverse_V.tolist(), stops
        stops += 1
        num_keys *= 2
        table, larger = tables(num_keys)
        larger[:num_unique] = keys_U[:num_unique]
        keys_U = larger
        refill_table(keys_U, num_unique, table, base)


@settings(deadline=None, max_examples=100)
@given(st.lists(KEYS, max_size=60), st.sampled_from([1, 2, 8, 128]), st.booleans())
def test_unique_keys_match_the_reference(keys, num_keys, in_place):
    keys_U, inverse_V, _ = unique(keys, num_keys, in_place)
    assert (keys_U, inverse_V) == unique_keys_reference(keys)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 200, 10**6]), st.sampled_from([-1, 0, 1]), st.booleans())
def test_keys_match_the_reference_around_the_ends_of_runs(seed, num_keys, off, in_place):
    rng = np.random.default_rng(seed)
    keys = (rng.integers(0, num_keys, 3 * RUN + off).astype(np.uint64) << np.uint64(5)).tolist()
    keys_U, inverse_V, _ = unique(keys, 4 * RUN, in_place)
    assert (keys_U, inverse_V) == unique_keys_reference(keys)


def test_a_table_that_fills_up_between_runs_keeps_what_was_done():
    keys = [9] * RUN + [9, 1, 9, 2] * (RUN // 4) + list(range(RUN))
    keys_U, inverse_V, stops = unique(keys, RUN)
    assert stops == 1
    assert (keys_U, inverse_V) == unique_keys_reference(keys)


def test_a_run_begins_only_where_all_its_keys_have_room():
    """Room for two: a run of three might bring three new keys, one of two may go ahead."""
    table, keys_U = tables(2)
    inverse_V = np.full(3, -1, np.int32)
    assert unique_keys(np.array([7, 7, 7], np.uint64), 0, table, 1, keys_U, 0, inverse_V) == (0, 0)
    assert inverse_V.tolist() == [-1, -1, -1]
    assert unique_keys(np.array([7, 8], np.uint64), 0, table, 1, keys_U, 0, inverse_V) == (2, 2)
    assert inverse_V.tolist() == [0, 1, -1]


@pytest.mark.parametrize("base", [1, 77, 2**32 - 100])
def test_entries_of_an_earlier_array_never_count_as_keys(base):
    table, keys_U = tables(20)
    one, two = np.arange(10, dtype=np.uint64), np.arange(5, 15, dtype=np.uint64)
    inverse_V = np.empty(10, np.int32)
    assert unique_keys(one, 0, table, base, keys_U, 0, inverse_V) == (10, 10)
    assert unique_keys(two, 0, table, base + 10, keys_U, 0, inverse_V) == (10, 10)
    assert inverse_V.tolist() == list(range(10))
    assert keys_U[:10].tolist() == two.tolist()


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
@given(st.lists(KEYS, min_size=1, max_size=60), st.lists(st.integers(0, 59), max_size=60), st.sampled_from([1, 2, 8]))
def test_dropping_repeats_leaves_each_key(keys, places, num_recent):
    keys_N, at_V = np.array(keys, np.uint64), np.array([at % len(keys) for at in places], np.int64)
    kept_V = np.empty(len(at_V) + 1, np.uint64)
    num = drop_repeats(keys_N, at_V, np.full(num_recent, RESERVED, np.uint64), kept_V)
    assert kept_V[:num].tolist() == drop_repeats_reference(keys_N, at_V, num_recent)
    assert set(kept_V[:num].tolist()) == set(keys_N[at_V].tolist())
