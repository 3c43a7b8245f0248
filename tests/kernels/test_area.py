"""The area of sorted examples against running sums in NumPy, bit by bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.area import NUM_SUMS, add_sorted, end_tie

weights = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1e6, width=32))
examples = st.lists(st.tuples(st.integers(1, 5), st.booleans(), weights), max_size=40).map(sorted)


def columns(rows):
    return [np.array([row[c] for row in rows], dtype) for c, dtype in enumerate((np.uint64, np.bool_, np.float32))]


def sums_of(rows, cuts=()):
    last, sums = np.zeros(1, np.uint64), np.zeros(NUM_SUMS)
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        add_sorted(*columns(rows[begin:end]), last, sums)
    end_tie(sums)
    return sums.tolist()


def running_sums(rows):
    """Weight of each class up to the end of each tie, and twice the area, all added one after another."""
    scores_N, positive_N, weights_N = columns(rows)
    ends = np.flatnonzero(np.append(np.diff(scores_N) > 0, True))
    negative, positive = (
        np.concatenate([[0.0], np.cumsum(np.where(of_class, weights_N.astype(np.float64), 0.0))[ends]])
        for of_class in (~positive_N, positive_N)
    )
    twice = np.cumsum(np.diff(positive) * (negative[1:] + negative[:-1]))[-1]
    return [negative[-1], positive[-1], negative[-1], positive[-1], twice]


@settings(deadline=None, max_examples=150)
@given(examples.filter(bool), st.data())
def test_the_sums_have_the_bits_of_running_sums(rows, data):
    """Wherever calls end."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    assert sums_of(rows, cuts) == running_sums(rows)
