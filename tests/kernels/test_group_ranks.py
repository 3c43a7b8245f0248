"""Recall and NDCG of sorted groups against their definition, and where a call ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from pipeline.kernels.group_ranks import add_ranks, end_ranks, group_ranks_reference

examples = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.booleans()), max_size=40).map(sorted)


def columns(rows):
    return [np.array([row[c] for row in rows], dtype) for c, dtype in enumerate((np.uint64, np.uint64, np.bool_))]


def ranks(rows, most, cuts=()):
    last, ties, sums = np.zeros(4, np.uint64), np.zeros((most, 2), np.int64), np.zeros(3)
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        add_ranks(*columns(rows[begin:end]), last, ties, sums)
    end_ranks(last, ties, sums)
    return sums.tolist()


@settings(deadline=None, max_examples=150)
@given(examples, st.integers(1, 12), st.data())
def test_recall_and_ndcg_match_their_definition(rows, most, data):
    """The bits are the same wherever calls end."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    expected = pytest.approx(group_ranks_reference(*columns(rows), most), rel=1e-12)
    assert ranks(rows, most, cuts) == ranks(rows, most) == expected


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.just(1), st.integers(0, 6), st.booleans()), min_size=2, max_size=30).map(sorted))
def test_ndcg_of_one_group_equals_scikit_learn_ties_included(rows):
    _, score, positive = columns(rows)
    _, ndcg, counted = ranks(rows, 5)
    assert counted == positive.any()
    assert ndcg == pytest.approx(ndcg_score([positive.astype(int)], [score.astype(float)], k=5), rel=1e-12)
