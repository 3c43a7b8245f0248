"""The swap at the start of `train`: victims out of their slots before arrivals come into them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.plans import WORDS, made_plan, made_rows, made_slab

from pipeline.records import Staged
from pipeline.stages.train import swap


@settings(deadline=None)
@given(st.permutations(range(10)), st.integers(0, 10), st.permutations(range(10)), st.integers(0, 10))
def test_victims_leave_before_arrivals_take_their_slots(victims, num_victims, slots, num_arrivals):
    victims, slots = victims[:num_victims], slots[:num_arrivals]
    before = made_rows(range(10), 100)
    arrivals = made_rows(range(50, 50 + num_arrivals), 700)
    device = made_slab(before)
    outgoing_RW = np.full((12, WORDS), 9, np.uint32)
    plan = made_plan(victim_slots_E=victims, arrival_slots=slots)
    swap(plan, Staged(plan.block, arrivals), device, outgoing_RW[:num_victims])
    assert (outgoing_RW[:num_victims] == before[victims]).all()
    assert (outgoing_RW[num_victims:] == 9).all()
    expected = before.copy()
    expected[slots] = arrivals
    assert (device.words_SW == expected).all()


def test_evaluation_leaves_the_device_slab_unchanged():
    device = made_slab(made_rows(range(4), 100))
    before = device.words_SW.copy()
    plan = made_plan(rows_U=[-1, -2, 3], arrival_keys_A=[50, 51])
    swap(plan, Staged(plan.block, made_rows([50, 51], 700)), device, np.empty((0, WORDS), np.uint32))
    assert (device.words_SW == before).all()
