"""The order of examples is a permutation, a function of (seed, epoch, window), and not the same twice."""

import numpy as np
import pytest

from pipeline.data import order


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_an_order_is_not_a_permutation(size):
    for found in (order.group_order(size, 1, 2), order.window_order(size, 1, 2, 3)):
        assert sorted(found.tolist()) == list(range(size))


def test_an_order_changes_from_call_to_call():
    np.testing.assert_array_equal(order.window_order(500, 2**63 - 1, 1, 4), order.window_order(500, 2**63 - 1, 1, 4))


def test_seed_epoch_or_window_leave_the_order_as_it_is():
    orders = [order.group_order(200, 0, 0), order.window_order(200, 0, 0, 0), order.window_order(200, 1, 0, 0)]
    orders += [order.window_order(200, 0, 1, 0), order.window_order(200, 0, 0, 1)]
    assert len({tuple(o.tolist()) for o in orders}) == len(orders)


def test_evaluation_is_shuffled_or_training_is_not():
    assert order.is_shuffled("train", 1)
    assert not order.is_shuffled("train", 0)
    assert not order.is_shuffled("validation", 1)
    assert not order.is_shuffled("test", 1)
