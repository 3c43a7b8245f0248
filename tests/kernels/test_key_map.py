"""The map's tables against a dict."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.key_map import NUM_PARTITIONS, UNKNOWN, find_places, move_entries, partition_keys, put
from pipeline.records import RESERVED

# Keys whose home entry is the same in every small table, the last entry (so that probing wraps), and key 0.
KEYS = st.one_of(
    st.integers(0, 9).map(lambda k: k << 40), st.integers(2**64 - 200, 2**64 - 2), st.integers(0, 2**64 - 2)
)


def empty(entries):
    return np.full((entries, 2), RESERVED, np.uint64)


def look_up(table, keys):
    places = np.full(len(keys), -7, np.int64)
    find_places(table, np.array(keys, np.uint64), np.arange(len(keys), dtype=np.int32), places)
    return places.tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2**64 - 2), max_size=200))
def test_a_key_lands_in_the_partition_of_its_low_bits(keys):
    keys_U = np.array(keys, np.uint64)
    members_U, starts = np.empty(len(keys), np.int32), np.empty(NUM_PARTITIONS + 1, np.int64)
    partition_keys(keys_U, members_U, starts)
    low = [key % NUM_PARTITIONS for key in keys]
    assert members_U.tolist() == sorted(range(len(keys)), key=lambda u: low[u])
    assert starts.tolist() == [sum(p < bound for p in low) for bound in range(NUM_PARTITIONS + 1)]


@settings(deadline=None, max_examples=80)
@given(st.lists(st.dictionaries(KEYS, st.integers(0, 2**50), max_size=8), max_size=4), st.lists(KEYS, max_size=20))
def test_a_table_answers_as_a_dict(puts, asked):
    table, held = empty(64), {}
    for entries in puts:
        keys, places = np.array([*entries], np.uint64), np.array([*entries.values()], np.int64)
        put(table, keys, np.arange(len(keys), dtype=np.int32), places)
        held |= entries
    asked += [*held]
    assert look_up(table, asked) == [held.get(key, UNKNOWN) for key in asked]
    larger = empty(256)
    move_entries(table, larger)
    assert look_up(larger, asked) == [held.get(key, UNKNOWN) for key in asked]


def test_put_and_find_touch_only_the_keys_of_members():
    table = empty(16)
    keys, places = np.array([64, 128, 192], np.uint64), np.array([5, 6, 7], np.int64)
    put(table, keys, np.array([2, 0], np.int32), places)
    assert look_up(table, keys) == [5, UNKNOWN, 7]
    out = np.full(3, -7, np.int64)
    find_places(table, keys, np.array([1], np.int32), out)
    assert out.tolist() == [-7, UNKNOWN, -7]


def test_the_reserved_key_is_never_found():
    """Padding of the log is looked up at the end of a run, and must not look alive."""
    assert look_up(empty(16), [int(RESERVED)]) == [UNKNOWN]
