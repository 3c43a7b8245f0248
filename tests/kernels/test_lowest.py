"""The selection of the lowest scores, against its reference."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.lowest import lowest, lowest_reference

# Values that differ in one digit of 16 bits only, and equal ones.
PARTS = st.sampled_from([0, 1, 2, 3, 1 << 15, 1 << 16, (1 << 16) + 1, 5 << 16, (1 << 31) - 1])


def lowest_of(major, minor, evictable, num):
    victims_E = np.empty(num, np.int32)
    lowest(np.array(major, np.int32), np.array(minor, np.int32), np.array(evictable, np.uint8), victims_E)
    return victims_E.tolist()


@examples(100, 400)
@given(st.lists(st.tuples(PARTS, PARTS, st.booleans()), max_size=30), st.floats(0, 1))
def test_the_selection_matches_the_reference(slots, share):
    major, minor, evictable = zip(*slots, strict=True) if slots else ((), (), ())
    num = int(share * sum(evictable))
    assert lowest_of(major, minor, evictable, num) == lowest_reference(major, minor, evictable, num)


def test_of_equal_scores_the_lower_slots_are_taken():
    assert lowest_of([7] * 5, [3] * 5, [1, 0, 1, 1, 1], 3) == [0, 2, 3]


def test_the_major_part_counts_before_the_minor_one():
    assert lowest_of([1, 0, 0], [0, 9, 8], [1, 1, 1], 2) == [1, 2]
    assert lowest_of([1, 0, 0], [0, 9, 8], [1, 1, 1], 1) == [2]
