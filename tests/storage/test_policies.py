"""What every policy must keep, and what the clock adds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.storage.policies import POLICIES, Clock

TOUCHED, EVICTABLE = st.lists(st.integers(0, 14), unique=True), st.lists(st.booleans(), min_size=15, max_size=15)
STEPS = st.lists(st.tuples(TOUCHED, EVICTABLE, st.floats(0, 1)), max_size=8)


def choose(policy, num, evictable):
    return policy.choose(num, np.array(evictable, np.uint8))


def replay(make_policy, num_slots, steps):
    """Touch and choose in turn; checks each choice and returns them all."""
    policy, choices = make_policy(num_slots), []
    for touched, bits, share in steps:
        policy.touch(np.array([s for s in touched if s < num_slots], np.int32))
        evictable = bits[:num_slots]
        victims = choose(policy, int(share * sum(evictable)), evictable)
        assert victims.dtype == np.int32
        assert len(victims) == int(share * sum(evictable))
        assert len(set(victims.tolist())) == len(victims)
        assert all(evictable[slot] for slot in victims)
        choices.append(victims.tolist())
    return choices


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=80)
@given(st.integers(0, 15), STEPS)
def test_a_policy_deterministically_chooses_distinct_evictable_slots(name, num_slots, steps):
    assert replay(POLICIES[name], num_slots, steps) == replay(POLICIES[name], num_slots, steps)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_finds_the_only_evictable_slots(name):
    policy = POLICIES[name](5)
    policy.touch(np.arange(5, dtype=np.int32))
    for _ in range(3):
        assert sorted(choose(policy, 5, [1] * 5).tolist()) == list(range(5))
        assert choose(policy, 1, [0, 0, 0, 1, 0]).tolist() == [3]


def test_the_clock_gives_a_second_chance():
    clock = Clock(4)
    clock.touch(np.array([0, 1, 2, 3], np.int32))
    # All are marked: one turn takes the marks, and the hand goes on from where it stopped.
    assert choose(clock, 1, [1] * 4).tolist() == [0]
    clock.touch(np.array([0, 1], np.int32))
    assert choose(clock, 2, [1] * 4).tolist() == [2, 3]
    # Slot 1 lost its mark as the hand passed over it, slot 0 loses it now.
    assert choose(clock, 2, [1] * 4).tolist() == [1, 2]


def test_an_unused_slot_leaves_before_one_used_again():
    clock = Clock(3)
    assert choose(clock, 1, [1] * 3).tolist() == [0]
    clock.touch(np.array([1], np.int32))
    assert choose(clock, 1, [1] * 3).tolist() == [2]
