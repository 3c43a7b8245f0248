"""The slots of a slab: which key each holds, and which are free."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.records import RESERVED
from pipeline.storage.places import Caps, Places, Slots


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=12), st.randoms())
def test_a_slot_is_given_out_twice_or_lost(num_slots, steps, random):
    slots, held, next_key = Slots(num_slots, "clock"), {}, 0
    for takes, num in steps:
        if takes:
            num = min(num, num_slots - len(held))
            keys = list(range(next_key, next_key + num))
            next_key += num
            taken = slots.take(np.array(keys, np.uint64)).tolist()
            assert not held.keys() & set(taken)
            assert len(set(taken)) == num
            held |= dict(zip(taken, keys, strict=True))
        else:
            leaving = random.sample(sorted(held), min(num, len(held)))
            slots.release(np.array(leaving, np.int32))
            held = {slot: key for slot, key in held.items() if slot not in leaving}
        assert slots.num_used == len(held)
        assert slots.num_free == num_slots - len(held)
        assert slots.keys_S.tolist() == [held.get(slot, int(RESERVED)) for slot in range(num_slots)]
        assert slots.occupied().tolist() == [int(slot in held) for slot in range(num_slots)]


def test_more_slots_are_given_out_than_there_are():
    slots = Slots(2, "clock")
    with pytest.raises(AssertionError):
        slots.take(np.arange(3, dtype=np.uint64))


def test_what_is_occupied_is_kept_by_the_caller():
    slots = Slots(2, "clock")
    slots.take(np.array([5], np.uint64))
    slots.occupied()[:] = 0
    assert slots.occupied().sum() == 1


@pytest.mark.parametrize(("num_rows", "whole"), [(0, 0), (1, 1024), (1024, 1024), (1025, 2048)])
def test_a_chunk_is_not_rounded_up(num_rows, whole):
    assert Caps(0, 0, 1024).whole_chunks(num_rows) == whole


def test_new_places_are_not_empty():
    places = Places(3, 2, "clock", Caps(0, 0, 1024))
    assert (places.device.num_free, places.host.num_free, places.tail, len(places.map)) == (3, 2, 0, 0)
