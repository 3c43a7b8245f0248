"""The scan of the clock policy, against its reference."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.slots import turn_hand, turn_hand_reference


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
