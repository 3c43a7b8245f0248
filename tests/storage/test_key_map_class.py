"""The map of all keys against a dict."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.depth import some
from support.oracle.unmix import unmixed

from pipeline.kernels.key_map import PLACE_BITS, UNKNOWN
from pipeline.records import RESERVED
from pipeline.storage.key_map import DEVICE, DISK, HOST, MAX_ROWS, KeyMap, bytes_for, place, row_of, tier_of
from pipeline.storage.plan_threads import PlanThreads

KEYS = st.one_of(st.integers(0, 300), st.integers(0, 30).map(lambda k: k << 40), st.integers(0, 2**64 - 2))
MAX_PLACE = 2**PLACE_BITS - 1
PLACES = st.integers(0, MAX_PLACE)


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
        moved = {key: (at + shift) % MAX_PLACE for key, at in held.items() if at % 2}
        predicted = key_map.bytes_with(keys_of(new))
        key_map.insert(keys_of(new), places_of(new.values()))
        assert key_map.num_bytes == predicted
        key_map.move(keys_of(moved), places_of(moved.values()))
        held |= new | moved
        same(key_map, held, asked)
    assert key_map.num_bytes == bytes_for(0)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 4000), min_size=1, max_size=6), st.booleans())
def test_a_growing_map_keeps_every_key_in_the_predicted_bytes(seed, nums, one_partition):
    key_map, rng = KeyMap(), np.random.default_rng(seed)
    keys = keys_of_one_partition(sum(nums)) if one_partition else rng.permutation(sum(nums)).astype(np.uint64)
    places = rng.integers(0, MAX_PLACE, len(keys))
    end = 0
    for num in nums:
        part = slice(end, end + num)
        end += num
        predicted = key_map.bytes_with(keys[part])
        key_map.insert(keys[part], places[part])
        assert key_map.num_bytes == predicted
        assert len(key_map) == end
    np.testing.assert_array_equal(key_map.find(keys), places)
    assert (key_map.find(keys + np.uint64(1 << 40)) == UNKNOWN).all()


def keys_of_one_partition(num):
    """Keys of one partition: their mixed keys have the same high bits."""
    return unmixed(77 << 56 | n * 0x9E3779B97F4A7C15 % 2**56 for n in range(num))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(0, 30_000), st.integers(0, 60_000), st.booleans())
@example(0, 30_000, 20_000_000, False)
def test_a_reserved_map_is_that_of_its_keys_once_it_is_released(seed, num, reserved, one_partition):
    grown, key_map, rng = KeyMap(), KeyMap(), np.random.default_rng(seed)
    keys = keys_of_one_partition(num) if one_partition else rng.permutation(num).astype(np.uint64)
    places = rng.integers(0, MAX_PLACE, num)
    key_map.reserve(reserved)
    for part in np.array_split(np.arange(num), 3):
        key_map.insert(keys[part], places[part])
    key_map.shrink()
    grown.insert(keys, places)
    assert key_map.num_bytes == grown.num_bytes
    same(key_map, dict(zip(keys.tolist(), places.tolist(), strict=True)), (1 << 50, 1 << 51))


def test_a_key_takes_at_most_16_bytes_and_13_from_10_million_on():
    """12.4 on average: over all numbers of keys between 10 and 20 million."""
    few = [bytes_for(n) / n for n in range(500_000, 10_000_000, 37_000)]
    many = [bytes_for(n) / n for n in range(10_000_000, 20_000_000, 37_000)]
    assert 14.3 < min(few[:100]) < max(few) < 16
    assert 11.9 < min(many) < max(many) < 13
    assert sum(many) / len(many) < 12.5


@pytest.mark.parametrize("num_keys", some([400_000, 7_000_000], 400_000))
def test_a_map_takes_the_bytes_expected_of_its_keys(num_keys):
    key_map = KeyMap()
    for first in range(0, num_keys, 1 << 20):
        keys = np.arange(first, min(first + (1 << 20), num_keys), dtype=np.uint64)
        key_map.insert(keys, keys.astype(np.int64))
    assert key_map.num_bytes == pytest.approx(bytes_for(num_keys), rel=0.01)
    keys = np.random.default_rng(0).integers(0, num_keys, 100_000).astype(np.uint64)
    np.testing.assert_array_equal(key_map.find(keys), keys.astype(np.int64))


def test_keys_that_are_made_to_share_one_place_are_refused():
    keys = unmixed(2**64 - 2 - n for n in range(300))
    key_map = KeyMap()
    key_map.insert(keys[:160], np.arange(160))
    assert key_map.find(keys[:160]).tolist() == [*range(160)]
    with pytest.raises(ValueError, match="more than 160 keys agree in the bits that choose their place"):
        key_map.insert(keys[160:], np.arange(140))


def test_keys_that_collide_in_a_smaller_map_are_refused_at_once():
    keys, key_map = unmixed(2**64 - 2 - n * 2**44 for n in range(300)), KeyMap()
    key_map.reserve(2_000_000)
    key_map.insert(keys, np.arange(300))
    with pytest.raises(ValueError, match="keys agree in the bits that choose their place"):
        key_map.shrink()


def test_the_reserved_key_is_never_found():
    """Padding of the log is looked up at the end of a run, and must not look alive."""
    key_map = KeyMap()
    key_map.insert(np.arange(5000, dtype=np.uint64), np.arange(5000))
    assert key_map.find(keys_of([RESERVED])).tolist() == [UNKNOWN]


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 40_000), st.floats(0, 1))
def test_a_shrunk_map_has_the_bytes_of_the_keys_that_are_left(seed, num, share):
    key_map, left, rng = KeyMap(), KeyMap(), np.random.default_rng(seed)
    keys, places = rng.permutation(num).astype(np.uint64), rng.integers(0, MAX_PLACE, num)
    key_map.insert(keys, places)
    gone = rng.random(num) < share
    key_map.remove(keys[gone])
    assert key_map.bytes_with(keys[gone]) == key_map.num_bytes, "until then the room is kept"
    key_map.shrink()
    left.insert(keys[~gone], places[~gone])
    assert key_map.num_bytes == left.num_bytes
    same(key_map, dict(zip(keys[~gone].tolist(), places[~gone].tolist(), strict=True)), keys[gone].tolist())


@pytest.mark.parametrize("num_threads", [2, 3, 16])
def test_threads_change_no_entry(num_threads):
    rng = np.random.default_rng(num_threads)
    keys = np.unique(rng.integers(0, 2**64 - 1, 150_000, np.uint64))
    rng.shuffle(keys)
    maps = KeyMap(), KeyMap(PlanThreads(num_threads))
    for key_map in maps:
        key_map.insert(keys, np.arange(len(keys)))
        key_map.move(keys[::3], np.arange(len(keys[::3])))
        key_map.remove(keys[1::3])
        key_map.shrink()
    found = [key_map.find(keys) for key_map in maps]
    np.testing.assert_array_equal(*found)
    assert (found[0][1::3] == UNKNOWN).all()


@given(st.sampled_from([DEVICE, HOST, DISK]), st.lists(st.integers(0, MAX_ROWS - 1)))
def test_a_place_keeps_its_tier_and_its_row(tier, rows):
    places_U = place(tier, np.array(rows, np.int64))
    assert tier_of(places_U).tolist() == [tier] * len(rows)
    assert row_of(places_U).tolist() == rows
    assert UNKNOWN not in places_U


def test_an_unknown_key_has_no_tier():
    assert tier_of(np.array([UNKNOWN])).tolist() == [-1]
