"""The map of all keys against a dict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.key_map import NUM_PARTITIONS, UNKNOWN
from pipeline.storage.key_map import DEVICE, DISK, FIRST_ENTRIES, HOST, KeyMap, place, row_of, tier_of

# All in one partition, half of them with the same home entry; or anywhere.
KEYS = st.one_of(
    st.integers(0, 30).map(lambda k: k << 6), st.integers(0, 30).map(lambda k: k << 40), st.integers(0, 2**64 - 2)
)
PLACES = st.integers(0, 2**50)


def keys_of(keys):
    return np.array([*keys], np.uint64)


def places_of(places):
    return np.array([*places], np.int64)


def same(key_map, held, asked=()):
    asked = [*held, *asked]
    assert key_map.find(keys_of(asked)).tolist() == [held.get(key, UNKNOWN) for key in asked]
    assert len(key_map) == len(held)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.dictionaries(KEYS, PLACES, max_size=12), PLACES), max_size=5), st.lists(KEYS, max_size=9))
def test_the_key_map_answers_as_a_dict_does(rounds, asked):
    key_map, held = KeyMap(), {}
    for entries, shift in rounds:
        new = {key: at for key, at in entries.items() if key not in held}
        moved = {key: at + shift for key, at in held.items() if at % 2}
        predicted = key_map.bytes_with(keys_of(new))
        key_map.insert(keys_of(new), places_of(new.values()))
        assert key_map.num_bytes == predicted
        key_map.move(keys_of(moved), places_of(moved.values()))
        held |= new | moved
        same(key_map, held, asked)
    assert key_map.num_bytes == NUM_PARTITIONS * FIRST_ENTRIES * 16


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 4000), min_size=1, max_size=6), st.booleans())
def test_a_growing_map_keeps_every_key_and_takes_the_predicted_bytes(seed, nums, one_partition):
    key_map, rng = KeyMap(), np.random.default_rng(seed)
    keys = rng.permutation(sum(nums)).astype(np.uint64) << np.uint64(6 if one_partition else 0)
    places = rng.integers(0, 2**50, len(keys))
    end = 0
    for num in nums:
        part = slice(end, end + num)
        end += num
        predicted = key_map.bytes_with(keys[part])
        key_map.insert(keys[part], places[part])
        assert key_map.num_bytes == predicted
        assert len(key_map) == end
    np.testing.assert_array_equal(key_map.find(keys), places)
    assert (key_map.find(keys + np.uint64(sum(nums) << 6)) == UNKNOWN).all()


@pytest.mark.parametrize("num_keys", [100_000, 229_000, 230_000, 310_000, 459_000])
def test_a_key_takes_23_to_46_bytes(num_keys):
    key_map, rng = KeyMap(), np.random.default_rng(0)
    keys = np.unique(rng.integers(0, 2**64 - 1, num_keys, np.uint64))
    key_map.insert(keys, np.zeros(len(keys), np.int64))
    assert 22.8 <= key_map.num_bytes / len(keys) <= 45.8


def test_predicting_the_bytes_of_keys_adds_none():
    key_map, keys = KeyMap(), np.arange(100_000, dtype=np.uint64)
    before = key_map.num_bytes
    assert key_map.bytes_with(keys) > before
    assert key_map.num_bytes == before
    assert len(key_map) == 0
    assert (key_map.find(keys) == UNKNOWN).all()


def test_calls_with_no_keys_succeed():
    key_map, none = KeyMap(), keys_of([])
    key_map.insert(none, places_of([]))
    key_map.move(none, places_of([]))
    assert key_map.find(none).tolist() == []
    assert key_map.bytes_with(none) == key_map.num_bytes


@given(st.sampled_from([DEVICE, HOST, DISK]), st.lists(st.integers(0, 2**48 - 1)))
def test_a_place_keeps_its_tier_and_its_row(tier, rows):
    places_U = place(tier, np.array(rows, np.int64))
    assert tier_of(places_U).tolist() == [tier] * len(rows)
    assert row_of(places_U).tolist() == rows
    assert UNKNOWN not in places_U


def test_an_unknown_key_has_no_tier():
    assert tier_of(np.array([UNKNOWN])).tolist() == [-1]
