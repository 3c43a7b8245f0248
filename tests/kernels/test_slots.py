"""The places of a block sorted by tier, and the metadata of slots, against plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.slots import (
    COPIES,
    DEVICE,
    DISK,
    HOST,
    NEW,
    NO_COPY,
    PART,
    TIER_SHIFT,
    age_slots,
    count_tiers,
    fill_slots,
    list_arrivals,
    read_uses,
    turn_hand,
    turn_hand_reference,
    use_rows,
)

SLOTS = 9
PLACES = st.lists(st.tuples(st.sampled_from([DEVICE, HOST, DISK, -1]), st.integers(0, SLOTS - 1)), max_size=20)
COPIES_S = st.lists(st.sampled_from([NO_COPY, 5, 70]), min_size=SLOTS, max_size=SLOTS)


@examples(16, 200)
@given(PLACES, COPIES_S, COPIES_S, st.sampled_from([0, PART - 3]))
def test_places_are_sorted_by_tier_as_plain_python_does(places, device_copies, host_copies, before):
    """`before`: places on the device before these, so that they lie in two parts."""
    places = [(DEVICE, 0)] * before + places
    places_U = np.array([-1 if tier < 0 else tier << TIER_SHIFT | slot for tier, slot in places], np.int64)
    copies = [np.array(of_slab, np.int64) for of_slab in (device_copies, host_copies)]
    rows_U, counts_P4 = np.empty(len(places), np.int32), np.empty((-(-len(places) // PART), 4), np.int64)
    count_tiers(places_U, 0, len(counts_P4), *copies, rows_U, counts_P4)
    totals = counts_P4.sum(axis=0)
    expected = [[u for u, (tier, _) in enumerate(places) if tier == wanted] for wanted in (-1, HOST, DISK)]
    held = [copies[tier][slot] for tier, slot in places if tier in (DEVICE, HOST)]
    held = [copy for copy in held if copy != NO_COPY]
    assert totals[[NEW, HOST, DISK, COPIES]].tolist() == [*map(len, expected), len(held)]
    assert [row for row, (tier, _) in zip(rows_U, places, strict=True) if tier in (DEVICE, HOST)] == [
        slot for tier, slot in places if tier in (DEVICE, HOST)
    ]
    begins_P4 = np.cumsum(counts_P4, axis=0) - counts_P4 + np.array([0, totals[NEW], totals[NEW] + totals[HOST], 0])
    num, keys_U = totals[[NEW, HOST, DISK]].sum(), 7 * np.arange(len(places), dtype=np.uint64)
    arrivals_A, keys_A, copies_C = np.empty(num, np.int64), np.empty(num, np.uint64), np.empty(len(held), np.int64)
    list_arrivals(places_U, keys_U, 0, len(counts_P4), begins_P4, *copies, arrivals_A, keys_A, copies_C)
    order = [u for positions in expected for u in positions]
    assert arrivals_A.tolist() == order
    assert keys_A.tolist() == [7 * u for u in order]
    assert copies_C.tolist() == held


@examples(16, 200)
@given(st.lists(st.integers(0, SLOTS - 1), unique=True), st.booleans(), st.integers(0, 2**31))
def test_what_is_written_to_slots_is_what_they_hold(slots, has_copies, age):
    slots_U, most = np.array(slots, np.int32), 2**31 - 1
    keys_U, copies_U = 3 * np.arange(len(slots), dtype=np.uint64), 10 + np.arange(len(slots) if has_copies else 0)
    uses = [np.arange(first, first + len(slots), dtype=np.int32) for first in (20, most - len(slots), 40)]
    keys_S, copies_S = np.zeros(SLOTS, np.uint64), np.zeros(SLOTS, np.int64)
    last_S, count_S, next_S, aged_S = (np.full(SLOTS, -7, np.int32) for _ in range(4))
    fill_slots(slots_U, keys_U, copies_U, *uses, keys_S, copies_S, last_S, count_S, next_S)
    assert keys_S[slots_U].tolist() == keys_U.tolist()
    assert copies_S[slots_U].tolist() == (copies_U.tolist() if has_copies else [NO_COPY] * len(slots))
    read = [np.empty(len(slots), np.int32) for _ in range(3)]
    read_uses(slots_U, last_S, count_S, next_S, *read)
    assert [array.tolist() for array in read] == [array.tolist() for array in uses]
    age_slots(slots_U, count_S, age, aged_S)
    assert aged_S[slots_U].tolist() == [min(count + age, most) for count in uses[1].tolist()]
    use_rows(slots_U, 99, last_S, count_S, copies_S)
    assert last_S[slots_U].tolist() == [99] * len(slots)
    assert (count_S[slots_U] == uses[1] + 1).all()
    assert copies_S[slots_U].tolist() == [NO_COPY] * len(slots)
    others = np.setdiff1d(np.arange(SLOTS), slots)
    assert (last_S[others] == -7).all()


def test_a_slot_that_does_not_exist_is_refused():
    words_S, longs_S = np.zeros(3, np.int32), np.zeros(3, np.int64)
    for slot in (-1, 3):
        slots_U = np.array([slot], np.int32)
        with pytest.raises(IndexError):
            use_rows(slots_U, 0, words_S, words_S, longs_S)
        with pytest.raises(IndexError):
            age_slots(slots_U, words_S, 0, words_S)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 20), st.data())
def test_the_scan_matches_the_reference(num_slots, data):
    bits = st.lists(st.integers(0, 1), min_size=num_slots, max_size=num_slots)
    marked, evictable = data.draw(bits), data.draw(bits)
    hand = data.draw(st.integers(0, num_slots - 1))
    num = data.draw(st.integers(0, sum(evictable)))

    marked_S, evictable_S, victims_E = (
        np.array(marked, np.uint8),
        np.array(evictable, np.uint8),
        np.empty(num, np.int32),
    )
    new_hand = turn_hand(marked_S, evictable_S, hand, victims_E)
    expected_marked = np.array(marked, np.uint8)
    expected, expected_hand = turn_hand_reference(expected_marked, np.array(evictable, np.uint8), hand, num)

    assert victims_E.tolist() == expected
    assert new_hand == expected_hand
    assert marked_S.tolist() == expected_marked.tolist()
    assert [s for s in range(num_slots) if evictable[s] and not evictable_S[s]] == sorted(expected)


def test_a_scan_without_slots_and_victims_succeeds():
    none = np.empty(0, np.uint8)
    assert turn_hand(none, none, 0, np.empty(0, np.int32)) == 0
