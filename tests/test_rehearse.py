"""What is given up first when the caps are too small."""

from itertools import pairwise

import pytest

from pipeline.rehearse import reductions


@pytest.mark.parametrize(
    ("look_ahead", "block_batches", "steps"),
    [
        (2, 1, [(2, 1), (1, 1), (0, 1)]),
        (2, 4, [(2, 4), (1, 4), (0, 4), (0, 2), (0, 1)]),
        (1, 7, [(1, 7), (0, 7), (0, 3), (0, 1)]),
        (0, 3, [(0, 3), (0, 1)]),
        (0, 1, [(0, 1)]),
    ],
)
def test_the_look_ahead_does_not_go_before_the_size_of_blocks(look_ahead, block_batches, steps):
    assert reductions(look_ahead, block_batches) == steps


@pytest.mark.parametrize("look_ahead", range(4))
@pytest.mark.parametrize("block_batches", [1, 2, 5, 16, 100])
def test_a_step_is_tried_twice_or_the_smallest_never(look_ahead, block_batches):
    steps = reductions(look_ahead, block_batches)
    assert steps[0] == (look_ahead, block_batches)
    assert steps[-1] == (0, 1)
    assert len(set(steps)) == len(steps)
    for (ahead, batches), (less_ahead, fewer) in pairwise(steps):
        assert less_ahead <= ahead
        assert fewer <= batches
        # What `plan` refused is planned again with less: taking up where the list stands gives the rest of it.
        assert reductions(ahead, batches)[1] == (less_ahead, fewer)
