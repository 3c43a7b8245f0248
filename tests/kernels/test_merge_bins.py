"""Merged bins against a dictionary of bins."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.area import merge_bins

bins = st.tuples(st.integers(0, 40) | st.integers(2**32 - 40, 2**32 - 1), st.integers(0, 9), st.integers(0, 9))
lists = st.lists(bins, max_size=30).map(sorted)


def columns(rows):
    return [np.array([row[c] for row in rows], dtype) for c, dtype in enumerate((np.uint32, np.float64, np.float64))]


@settings(deadline=None, max_examples=150)
@given(lists, lists, st.sampled_from([0, 1, 3, 31, 32]), st.integers(0, 60))
def test_merged_bins_are_the_sums_of_both_lists(one, other, shift, room):
    expected = {}
    for score, positives, negatives in [*one, *other]:
        before = expected.get(score >> shift << shift, (0, 0))
        expected[score >> shift << shift] = before[0] + positives, before[1] + negatives
    merged = [np.empty(room, dtype) for dtype in (np.uint32, np.float64, np.float64)]
    num = merge_bins(*columns(one), *columns(other), shift, *merged)
    if len(expected) > room:
        assert num == -1
        return
    assert [(s, (p, n)) for s, p, n in zip(*(column[:num].tolist() for column in merged), strict=True)] == sorted(
        expected.items()
    )
