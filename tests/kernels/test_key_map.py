"""The tables of the map's partitions against a dict, and the filter of keys before them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracle.unmix import unmixed

from pipeline.kernels.hashing import mix_reference
from pipeline.kernels.key_map import (
    MAX_GROWTH,
    MIN_LINES_OF_6,
    NUM_PARTITIONS,
    PARTITION_BITS,
    PLACE_BITS,
    SPARE_LINES,
    UNKNOWN,
    copy_tables,
    count_keys,
    enter_keys,
    find_places,
    group_keys,
    least_sizes,
    move_keys,
    remove_keys,
)
from pipeline.kernels.key_table import BITS_PER_KEY, num_words, pass_keys, put_keys
from pipeline.machine.limits import aligned_empty

PARTITION = 77
BITS = 64 - PARTITION_BITS
"""Bits of a mixed key within its partition."""
# Mixed keys: one home for all, differing in the lowest and in the highest stored bits; the last homes; anywhere.
MIXED = st.one_of(
    st.integers(0, 40), st.integers(0, 40).map(lambda k: k << 38), st.integers(2**BITS - 90, 2**BITS - 1),
    st.integers(0, 2**BITS - 1),
)  # fmt: skip
PLACES = st.integers(0, 2**PLACE_BITS - 1)


class Table:
    """The table of one partition, whose keys are given by their mixed forms, with 255 others that stay empty."""

    def __init__(self, lines):
        self.slots = 6 if lines >= MIN_LINES_OF_6 else 5
        self.words = aligned_empty((lines + SPARE_LINES, 8), np.uint64)
        self.words[:] = 0
        self.tables = np.zeros((NUM_PARTITIONS, 2), np.int64)
        self.tables[PARTITION] = self.words.ctypes.data, lines

    def enter(self, entries):
        places = np.array([*entries.values()], np.int64)
        return enter_keys(self.tables, keys_of(entries), places)

    def move(self, entries):
        move_keys(self.tables, keys_of(entries), np.array([*entries.values()], np.int64))

    def remove(self, mixed):
        remove_keys(self.tables, keys_of(mixed))

    def find(self, mixed):
        places = np.full(len(mixed), -7, np.int64)
        find_places(self.tables, keys_of(mixed), places)
        return places.tolist()

    def copied_into(self, table):
        return copy_tables(self.tables, np.array([PARTITION]), table.tables)


def keys_of(mixed):
    return unmixed(PARTITION << BITS | one for one in mixed)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.lists(st.floats(0, 50), min_size=1, max_size=5))
def test_the_least_size_is_the_first_that_is_enough(steps, needed):
    sizes = np.cumsum([*steps, 60])
    found = np.empty(len(needed), np.int64)
    least_sizes(np.array(needed), np.tile(sizes, (len(needed), 1)), found)
    assert found.tolist() == [min(size for size in sizes.tolist() if size >= wanted) for wanted in needed]


@pytest.mark.parametrize(
    ("lines", "larger"), [(8, 9), (40, 40 * MAX_GROWTH), (77, 41), (4095, MIN_LINES_OF_6), (MIN_LINES_OF_6, 4507)]
)
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.dictionaries(MIXED, PLACES, max_size=25), PLACES), max_size=4), st.lists(MIXED, max_size=20)
)
def test_a_table_answers_as_a_dict(lines, larger, rounds, asked):
    table, held = Table(lines), {}
    for entries, place in rounds:
        new = {mixed: at for mixed, at in entries.items() if mixed not in held}
        assert table.enter(new)
        held |= new
        moved = dict.fromkeys([mixed for mixed in held if mixed % 3 == 0], place)
        table.move(moved)
        held |= moved
        assert table.find([*held, *asked]) == [held.get(mixed, UNKNOWN) for mixed in [*held, *asked]]
        table.remove(removed := [mixed for mixed in held if mixed % 5 == 0])
        held = {mixed: at for mixed, at in held.items() if mixed % 5}
        assert table.find([*held, *removed]) == [*held.values()] + [UNKNOWN] * len(removed)
    grown = Table(larger)
    assert table.copied_into(grown)
    assert grown.find([*held, *asked]) == [held.get(mixed, UNKNOWN) for mixed in [*held, *asked]]
    more = {mixed: 5 for mixed in asked if mixed not in held}
    assert grown.enter(more), "the copy takes further keys"
    assert grown.find([*held, *more]) == [*held.values(), *more.values()]


def test_a_table_without_room_for_a_key_says_so():
    """All keys have the last home, after which only the spare lines follow."""
    table, smaller = Table(8), Table(8)
    last = 2**BITS - 1
    room = SPARE_LINES * table.slots
    assert table.enter({last - n: n for n in range(room)})
    assert table.find([last, last - room + 1, last - room]) == [0, room - 1, UNKNOWN]
    assert not table.enter({last - room: 7})
    assert table.find([last, last - room]) == [0, UNKNOWN]
    assert table.copied_into(smaller), "they fill it to its last entry"
    assert smaller.find([last, last - room + 1]) == [0, room - 1]


@given(st.lists(st.integers(0, 2**64 - 2), max_size=300, unique=True))
def test_keys_are_grouped_by_partition_in_their_order(keys):
    keys = np.array(keys, np.uint64)
    partition = np.array([mix_reference(int(key)) >> (64 - PARTITION_BITS) for key in keys], np.int64)
    counts, grouped, places = np.empty(NUM_PARTITIONS, np.int64), np.empty_like(keys), np.empty(len(keys), np.int64)
    count_keys(keys, counts)
    group_keys(keys, np.arange(len(keys)), counts, grouped, places)
    np.testing.assert_array_equal(places, np.argsort(partition, kind="stable"))
    np.testing.assert_array_equal(grouped, keys[places])


@pytest.mark.parametrize("lines", [300, 4300])
def test_a_table_filled_again_after_removals_keeps_every_key(lines):
    rng, table = np.random.default_rng(lines), Table(lines)
    held, full = {}, int(0.925 * lines * table.slots)
    for _ in range(6):
        new = [mixed for mixed in rng.integers(0, 2**BITS, full - len(held)).tolist() if mixed not in held]
        entries = dict(zip(new, rng.integers(0, 2**PLACE_BITS, len(new)).tolist(), strict=True))
        assert table.enter(entries)
        held |= entries
        table.remove(removed := [mixed for mixed in held if rng.random() < 0.6])
        for mixed in removed:
            del held[mixed]
        assert table.find([*held, *removed]) == [*held.values()] + [UNKNOWN] * len(removed)
    table.remove([*held])
    assert not table.words.view(np.uint16).reshape(-1, 32)[:, 30:].any(), "an empty table is as a new one"


def passed(keys, bits):
    passes = np.empty(len(keys), np.bool_)
    pass_keys(keys, np.arange(len(keys))[::-1].copy(), bits, passes)
    return passes[::-1]


def filter_of(keys):
    bits = np.zeros(num_words(len(keys)), np.uint64)
    put_keys(keys, bits)
    return bits


@given(st.lists(st.integers(0, 2**64 - 2), max_size=300, unique=True))
def test_a_filter_passes_all_of_its_keys(keys):
    keys = np.array(keys, np.uint64)
    assert passed(keys, filter_of(keys)).all()


def test_a_filter_passes_one_in_16_of_other_keys_at_most():
    keys = np.arange(30_000, dtype=np.uint64)
    bits = filter_of(keys[:10_000])
    assert passed(keys[10_000:], bits).mean() < 1.1 / BITS_PER_KEY


def test_an_empty_filter_passes_nothing():
    assert not passed(np.arange(100, dtype=np.uint64), filter_of(np.empty(0, np.uint64))).any()
