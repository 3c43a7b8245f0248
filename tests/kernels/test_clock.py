"""The scan of the clock policy, against its reference."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.clock import turn_hand, turn_hand_reference


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


def test_a_marked_slot_loses_its_mark_and_is_passed_over_once():
    marked_S, evictable_S, victims_E = np.array([1, 0, 1], np.uint8), np.ones(3, np.uint8), np.empty(1, np.int32)
    assert turn_hand(marked_S, evictable_S, 0, victims_E) == 2
    assert victims_E.tolist() == [1]
    assert marked_S.tolist() == [0, 0, 1]


def test_a_pinned_slot_keeps_its_mark():
    marked_S, victims_E = np.array([1, 1], np.uint8), np.empty(1, np.int32)
    turn_hand(marked_S, np.array([0, 1], np.uint8), 0, victims_E)
    assert victims_E.tolist() == [1]
    assert marked_S[0] == 1


def test_a_scan_ends_where_all_slots_are_marked():
    victims_E = np.empty(3, np.int32)
    turn_hand(np.ones(3, np.uint8), np.ones(3, np.uint8), 1, victims_E)
    assert victims_E.tolist() == [1, 2, 0]


def test_a_scan_without_slots_and_victims_succeeds():
    none = np.empty(0, np.uint8)
    assert turn_hand(none, none, 0, np.empty(0, np.int32)) == 0
