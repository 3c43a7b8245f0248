"""Guesses about the keys that may still come."""

from dataclasses import replace

from conftest import make_workflow
from support.runs.harness import setup_of

from pipeline.data.source import Source
from pipeline.preflight.larger_caps import keys_at_end
from pipeline.preflight.sizes import FirstWindow


def test_keys_grow_as_they_did_and_at_most_in_proportion(data_root):
    """90 training examples in an epoch; the first window has 12 of them."""
    workflow = make_workflow(data_root, look_ahead=1)
    setup = setup_of(workflow, Source(workflow.data, workflow.seed))

    def guess(first, keys, examples):
        fit = replace(setup.fit, block_batches=1, window=FirstWindow((first, first), (first, first)))
        return keys_at_end(replace(setup, fit=fit), keys, examples)

    assert guess(10, 100, 90) == guess(10, 100, 130) == 100, "in later epochs no keys are new"
    assert guess(20, 80, 48) == 150, "proportional growth"
    assert guess(1, 80, 48) == guess(0, 80, 48) == 150, "no faster growth than that"
    assert guess(40, 80, 48) == 129, "between proportional growth and the square root"
