"""The order of examples is a permutation, a function of (seed, epoch, window), and not the same twice."""

import numpy as np
import pytest

from pipeline.data import order


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_an_order_is_a_permutation(size):
    for found in (order.group_order(size, 1, 2), order.window_order(size, 1, 2, 3)):
        assert sorted(found.tolist()) == list(range(size))


def test_an_order_is_the_same_at_every_call():
    np.testing.assert_array_equal(order.group_order(500, 2**63 - 1, 1), order.group_order(500, 2**63 - 1, 1))
    np.testing.assert_array_equal(order.window_order(500, 2**63 - 1, 1, 4), order.window_order(500, 2**63 - 1, 1, 4))


def test_seed_epoch_and_window_each_change_an_order():
    orders = [order.group_order(200, seed, epoch) for seed, epoch in ((0, 0), (1, 0), (0, 1))]
    orders += [order.window_order(200, *of) for of in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({tuple(o.tolist()) for o in orders}) == len(orders)


def test_only_training_with_a_window_is_shuffled():
    assert order.is_shuffled("train", 1)
    assert not order.is_shuffled("train", 0)
    assert not order.is_shuffled("validation", 1)
    assert not order.is_shuffled("test", 1)
