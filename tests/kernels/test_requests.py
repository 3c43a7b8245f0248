"""Examples that hold a key, not its occurrences."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.batches import make_batch

from pipeline.kernels.requests import count_examples, count_examples_reference
from pipeline.records import TILE


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.sampled_from([1, 7, TILE, 2 * TILE + 5]), st.integers(0, 2), st.integers(1, 2))
def test_an_example_that_holds_a_key_twice_counts_once(seed, num_examples, num_single, num_multi):
    batch = make_batch(seed, num_examples, num_single, num_multi, 5, 3)
    source, starts = batch.sources()
    counts = np.empty(batch.num_unique, np.int32)
    count_examples(source, starts, batch.num_fields, counts)
    assert counts.tolist() == count_examples_reference(source, starts, batch.num_fields)
