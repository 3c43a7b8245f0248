"""The slots of a slab: which key each holds, which are free, and the rows in them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.oracle.data_path import take
from support.oracle.tier_contract import check_tier, gathered, made_rows
from support.runs.sharded_tables import SOME

from pipeline.records import RESERVED
from pipeline.storage.chunks import MIN_GROWTH, Chunks
from pipeline.storage.key_map import MIN_BYTES
from pipeline.storage.places import NO_COPY, Caps, Places, Slots
from pipeline.storage.tier import Slab


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=12), st.randoms())
def test_a_slot_is_given_out_once_and_never_lost(num_slots, steps, random):
    slots, held, next_key = Slots(num_slots, "clock"), {}, 0
    for takes, num in steps:
        if takes:
            num = min(num, num_slots - len(held))
            keys = list(range(next_key, next_key + num))
            next_key += num
            taken = take(slots, keys).tolist()
            assert not held.keys() & set(taken)
            assert len(set(taken)) == num
            held |= dict(zip(taken, keys, strict=True))
        else:
            leaving = random.sample(sorted(held), min(num, len(held)))
            slots.release(np.array(leaving, np.int32))
            held = {slot: key for slot, key in held.items() if slot not in leaving}
        assert slots.num_free == num_slots - len(held)
        assert slots.keys_S.tolist() == [held.get(slot, int(RESERVED)) for slot in range(num_slots)]
        assert slots.occupied().tolist() == [int(slot in held) for slot in range(num_slots)]


def test_no_more_slots_are_given_out_than_exist():
    slots = Slots(2, "clock")
    with pytest.raises(AssertionError):
        take(slots, range(3))


def test_the_occupied_mask_is_a_copy():
    slots = Slots(2, "clock")
    take(slots, [5])
    slots.occupied()[:] = 0
    assert slots.occupied().sum() == 1


def changed(slots):
    return [slot for part in slots.changed() for slot in part.tolist()]


def test_a_scan_in_parts_names_every_changed_slot_once(monkeypatch):
    monkeypatch.setattr("pipeline.storage.places.SCANNED", 4)
    slots = Slots(10, "clock")
    at = take(slots, range(9))
    slots.copies_S[at[[1, 5]]] = 3
    assert changed(slots) == sorted(np.delete(at, [1, 5]).tolist())


def test_the_next_row_of_a_slot_has_no_copy_of_the_one_before():
    slots = Slots(3, "clock")
    at = take(slots, [5, 6])
    assert changed(slots) == sorted(at.tolist())
    slots.copies_S[at] = [70, 80]
    assert changed(slots) == []
    slots.release(at[:1])
    assert changed(slots) == [], "a free slot has nothing to write"
    again = take(slots, [7])
    assert changed(slots) == again.tolist()
    assert slots.copies_S[again].tolist() == [NO_COPY]


def make_places(device_rows=3, host_rows=2, disk_chunks=1 << 20, map_bytes=1 << 20, **changes):
    return Places(device_rows, host_rows, ("clock", "clock"), Caps(disk_chunks, map_bytes), Chunks(4, **changes))


def test_the_reserve_covers_both_slabs_and_merged_rows():
    assert make_places(5, 3).commit_chunks == 2 + MIN_GROWTH
    assert make_places(5, 4).commit_chunks == 3 + MIN_GROWTH
    # The map cannot know more rows than these, whatever the slabs could hold.
    assert make_places(10_000, 10_000, map_bytes=MIN_BYTES * 6).commit_chunks == 2 + MIN_GROWTH


def test_the_commit_reserve_covers_a_padded_chunk_of_each_shard():
    """Eight slots, of which one may hold a row of another shard than the others: three chunks instead of two."""
    assert make_places(5, 3, shards=SOME).commit_chunks == 3 + 2 * MIN_GROWTH


def test_half_of_the_disk_room_is_left_to_the_commit():
    """1,000 live rows are 250 chunks, of which the disk has room for so many next to slabs of two chunks."""
    for disk_chunks, expected in ((10_000, 250), (501, 249), (402, 200), (2, MIN_GROWTH), (0, MIN_GROWTH)):
        places = make_places(5, 3, disk_chunks)
        places.map.insert(np.arange(1000, dtype=np.uint64), np.arange(1000))
        places.begin_growth()
        assert places.chunks.allowance == expected
        places.begin_growth(at_least=300)
        assert places.chunks.allowance == 300


@pytest.mark.parametrize(("num_rows", "num_words"), [(2, 2), (17, 8), (300, 56)])
def test_a_slab_keeps_the_tier_contract(num_rows, num_words):
    check_tier(lambda: Slab(num_rows, num_words), num_rows, num_words, np.int32)


def test_a_row_put_twice_has_its_last_value_and_others_stay():
    slab, rows = Slab(5, 3), made_rows(5, 3)
    slab.scatter(np.arange(5, dtype=np.int32), rows)
    slab.scatter(np.array([3, 1], np.int32), rows[[0, 4]])
    np.testing.assert_array_equal(gathered(slab, range(5), 3, np.int32), rows[[0, 4, 2, 0, 4]])


def test_the_floats_of_a_slab_are_a_view_of_its_words():
    slab = Slab(3, 4)
    slab.scatter(np.arange(3, dtype=np.int32), np.zeros((3, 4), np.uint32))
    slab.floats_SW[1, 2] = 1.0
    assert gathered(slab, [1], 4, np.int32).view(np.float32).tolist() == [[0, 0, 1, 0]]
    assert slab.words_SW.ctypes.data % 64 == 0
