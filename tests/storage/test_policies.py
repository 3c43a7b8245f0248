"""What every policy must keep, and by which rule each chooses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.storage.policies import POLICIES, UNKNOWN_USE, Clock, Uses

TOUCHED, EVICTABLE = st.lists(st.integers(0, 14), unique=True), st.lists(st.booleans(), min_size=15, max_size=15)
STEPS = st.lists(st.tuples(TOUCHED, EVICTABLE, st.floats(0, 1), st.integers(0, 9)), max_size=8)


class Slab:
    """A policy and the uses of its slots, as `Slots` keeps them."""

    def __init__(self, make_policy, num_slots):
        self.uses, self.blocks = Uses.none(num_slots), 0
        self.policy = make_policy(self.uses)

    def touch(self, *slots, next_use=UNKNOWN_USE):
        """A training block uses these slots."""
        at = np.array(slots, np.int32)
        self.uses.last_N[at] = self.blocks
        self.uses.count_N[at] += 1
        self.uses.next_N[at] = next_use
        self.blocks += 1
        self.policy.touch(at)

    def choose(self, num, evictable):
        return self.policy.choose(num, np.array(evictable, np.uint8))


def replay(make_policy, num_slots, steps):
    """Touch and choose in turn; checks each choice and returns them all."""
    slab, choices = Slab(make_policy, num_slots), []
    for touched, bits, share, next_use in steps:
        slab.touch(*(s for s in touched if s < num_slots), next_use=next_use or UNKNOWN_USE)
        evictable = bits[:num_slots]
        victims = slab.choose(int(share * sum(evictable)), evictable)
        assert victims.dtype == np.int32
        assert len(victims) == int(share * sum(evictable))
        assert len(set(victims.tolist())) == len(victims)
        assert all(evictable[slot] for slot in victims)
        choices.append(victims.tolist())
    return choices


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=80)
@given(st.integers(0, 15), STEPS)
def test_a_policy_chooses_distinct_evictable_slots(name, num_slots, steps):
    assert replay(POLICIES[name], num_slots, steps) == replay(POLICIES[name], num_slots, steps)


# Slots in the order in which they leave, after these blocks: each its slots and the batch of their next use.
BLOCKS = [((0, 1, 2, 3), None), ((0, 1), 90), ((0,), None), ((1, 3), 70), ((2,), 80)]
ORDER = {"lru": [0, 1, 3, 2], "lfu": [3, 2, 0, 1], "lfu_aged": [3, 2, 0, 1], "foresight": [0, 2, 1, 3]}


@pytest.mark.parametrize("name", ORDER)
def test_a_policy_gives_up_the_slots_in_the_order_of_its_rule(name):
    slab, left, order = Slab(POLICIES[name], 4), [1] * 4, []
    for slots, next_use in BLOCKS:
        slab.touch(*slots, next_use=next_use or UNKNOWN_USE)
    while any(left):
        (slot,) = slab.choose(1, left).tolist()
        order.append(slot)
        left[slot] = 0
    assert order == ORDER[name]


def test_a_row_that_was_popular_leaves_only_with_ageing():
    for name, leaves in (("lfu", False), ("lfu_aged", True)):
        slab = Slab(POLICIES[name], 3)
        for _ in range(4):
            slab.touch(0)
        gone = []
        for _ in range(12):
            # New rows come and are used once each, in the slots 1 and 2; slot 0 is never used again.
            (slot,) = slab.choose(1, [1] * 3).tolist()
            gone.append(slot)
            slab.uses.count_N[slot] = 0
            slab.touch(slot)
        assert (0 in gone) == leaves


def test_the_clock_gives_a_second_chance():
    clock = Slab(Clock, 4)
    clock.touch(0, 1, 2, 3)
    # All are marked: one turn takes the marks, and the hand goes on from where it stopped.
    assert clock.choose(1, [1] * 4).tolist() == [0]
    clock.touch(0, 1)
    assert clock.choose(2, [1] * 4).tolist() == [2, 3]
    # Slot 1 lost its mark as the hand passed over it, slot 0 loses it now.
    assert clock.choose(2, [1] * 4).tolist() == [1, 2]


def test_an_unused_slot_leaves_before_one_used_again():
    clock = Slab(Clock, 3)
    assert clock.choose(1, [1] * 3).tolist() == [0]
    clock.touch(1)
    assert clock.choose(1, [1] * 3).tolist() == [2]
