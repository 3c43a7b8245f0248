"""The selection of the lowest scores, against its reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.lowest import PART, lowest, lowest_reference
from pipeline.machine.threads import Threads

ALONE = Threads(1)

# Values that differ in one digit of 16 bits only, and equal ones.
PARTS = st.sampled_from([0, 1, 2, 3, 1 << 15, 1 << 16, (1 << 16) + 1, 5 << 16, (1 << 31) - 1])


def lowest_of(major, minor, evictable, num, threads=ALONE):
    slots = np.array(major, np.int32), np.array(minor, np.int32), np.array(evictable, np.uint8)
    return lowest(*slots, num, threads).tolist()


@examples(40, 400)
@given(st.lists(st.tuples(PARTS, PARTS, st.booleans()), max_size=30), st.floats(0, 1))
def test_the_selection_matches_the_reference(slots, share):
    major, minor, evictable = zip(*slots, strict=True) if slots else ((), (), ())
    num = int(share * sum(evictable))
    assert lowest_of(major, minor, evictable, num) == lowest_reference(major, minor, evictable, num)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 16])
@pytest.mark.parametrize("highest", [1, 5, 1 << 20, (1 << 31) - 1])
def test_threads_and_parts_change_no_victim(num_threads, highest):
    """Slots of several parts, with many and with few equal scores, and with none evictable in one of the parts."""
    rng = np.random.default_rng(highest)
    major, minor = (rng.integers(0, highest, 3 * PART + 5, np.int32) for _ in range(2))
    evictable = (rng.random(len(major)) < 0.6).astype(np.uint8)
    evictable[PART : 2 * PART] = 0
    order = np.lexsort((np.arange(len(major)), minor, major))
    order = order[evictable[order] != 0]
    for num in (1, 700, len(order) // 2, len(order)):
        victims = lowest(major, minor, evictable, num, Threads(num_threads))
        np.testing.assert_array_equal(victims, np.sort(order[:num]))


def test_fewer_evictable_slots_than_victims_are_refused():
    with pytest.raises(IndexError):
        lowest_of([1, 2, 3], [0, 0, 0], [1, 0, 1], 3)
