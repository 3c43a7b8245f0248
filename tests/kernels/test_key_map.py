"""The map's tables against a dict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.key_map import (
    MAX_GROWTH,
    MIN_LINES_OF_6,
    NUM_PARTITIONS,
    PARTITION_BITS,
    PLACE_BITS,
    SPARE_LINES,
    UNKNOWN,
    copy_entries,
    enter,
    find_places,
    move_keys,
    partition_keys,
    stored_bits,
)
from pipeline.kernels.mix import mix_reference
from pipeline.machine.memory import aligned_empty
from pipeline.records import RESERVED

BITS = 64 - PARTITION_BITS
"""Bits of a mixed key within its partition."""
# Mixed keys: one home for all, differing in the lowest and in the highest stored bits; the last homes; anywhere.
MIXED = st.one_of(
    st.integers(0, 40), st.integers(0, 40).map(lambda k: k << 38), st.integers(2**BITS - 90, 2**BITS - 1),
    st.integers(0, 2**BITS - 1),
)  # fmt: skip
PLACES = st.integers(0, 2**PLACE_BITS - 1)


class Table:
    """A table of the kernels with its own dict."""

    def __init__(self, lines):
        self.slots = 6 if lines >= MIN_LINES_OF_6 else 5
        words = aligned_empty((lines + SPARE_LINES, 8), np.uint64)
        words[:] = 0
        self.form = words, words.view(np.uint16), self.slots, stored_bits(self.slots)

    def _call(self, kernel, entries):
        mixed, places = np.array([*entries], np.uint64), np.array([*entries.values()], np.int64)
        return kernel(*self.form, mixed, np.arange(len(mixed), dtype=np.int32), places)

    def enter(self, entries):
        return self._call(enter, entries)

    def move(self, entries):
        self._call(move_keys, entries)

    def find(self, mixed):
        places = np.full(len(mixed), -7, np.int64)
        find_places(*self.form, np.array(mixed, np.uint64), np.arange(len(mixed), dtype=np.int32), places)
        return places.tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2**64 - 2), max_size=200))
def test_a_mixed_key_lands_in_the_partition_of_its_high_bits(keys):
    members_U, mixed_U = np.empty(len(keys), np.int32), np.empty(len(keys), np.uint64)
    starts = np.empty(NUM_PARTITIONS + 1, np.int64)
    partition_keys(np.array(keys, np.uint64), members_U, mixed_U, starts)
    mixed = [mix_reference(key) for key in keys]
    assert members_U.tolist() == sorted(range(len(keys)), key=lambda u: mixed[u] >> BITS)
    assert mixed_U.tolist() == [mixed[u] % 2**BITS for u in members_U]
    assert starts.tolist() == [sum(m >> BITS < bound for m in mixed) for bound in range(NUM_PARTITIONS + 1)]


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
    grown = Table(larger)
    assert copy_entries(*table.form, *grown.form)
    assert grown.find([*held, *asked]) == [held.get(mixed, UNKNOWN) for mixed in [*held, *asked]]
    more = {mixed: 5 for mixed in asked if mixed not in held}
    assert grown.enter(more), "the copy takes further keys"
    assert grown.find([*held, *more]) == [*held.values(), *more.values()]


@pytest.mark.parametrize(("lines", "larger"), [(300, 317), (4300, 4730)])
def test_a_full_table_keeps_every_key(lines, larger):
    rng = np.random.default_rng(lines)
    table, grown = Table(lines), Table(larger)
    mixed = np.unique(rng.integers(0, 2**BITS, int(0.925 * lines * table.slots), np.uint64))
    rng.shuffle(mixed)
    entries = dict(zip(mixed.tolist(), rng.integers(0, 2**PLACE_BITS, len(mixed)).tolist(), strict=True))
    assert table.enter(entries)
    assert copy_entries(*table.form, *grown.form)
    others = [mixed ^ 1 for mixed in entries if mixed ^ 1 not in entries]
    for full in (table, grown):
        assert full.find([*entries]) == [*entries.values()]
        assert set(full.find(others)) == {UNKNOWN}


def test_a_table_without_room_for_a_key_says_so():
    """All keys have the last home, after which only the spare lines follow."""
    table, smaller = Table(8), Table(8)
    last = 2**BITS - 1
    room = SPARE_LINES * table.slots
    assert table.enter({last - n: n for n in range(room)})
    assert table.find([last, last - room + 1, last - room]) == [0, room - 1, UNKNOWN]
    assert not table.enter({last - room: 7})
    assert table.find([last, last - room]) == [0, UNKNOWN]
    assert copy_entries(*table.form, *smaller.form), "they fill it to its last entry"
    assert smaller.find([last, last - room + 1]) == [0, room - 1]


def test_kernels_touch_only_the_places_of_members():
    table = Table(8)
    mixed, places = np.array([64, 192], np.uint64), np.array([5, 6, 7], np.int64)
    enter(*table.form, mixed, np.array([0, 2], np.int32), places)
    assert table.find([64, 128, 192]) == [5, UNKNOWN, 7]
    out = np.full(3, -7, np.int64)
    find_places(*table.form, mixed[:1], np.array([1], np.int32), out)
    assert out.tolist() == [-7, 5, -7]


def test_the_reserved_key_is_never_found():
    """Padding of the log is looked up at the end of a run, and must not look alive."""
    assert Table(8).find([mix_reference(int(RESERVED)) % 2**BITS]) == [UNKNOWN]
