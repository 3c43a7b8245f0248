"""Metrics within groups against scikit-learn's, group by group."""

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from pipeline.kernels.group_ranks import group_ranks_reference
from pipeline.metrics.evaluation import GroupMetrics

few = settings(max_examples=80, deadline=None)
ids = st.sampled_from([0, 1, 7, 1 << 63, (1 << 64) - 1])
scores = st.one_of(st.sampled_from([-1.5, -0.0, 0.0, 0.25]), st.floats(-9, 9, width=32))
weights = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1e6, width=32))
examples = st.lists(st.tuples(ids, scores, st.booleans(), weights), min_size=1, max_size=60)


def columns(rows):
    group, score, label, weight = zip(*rows, strict=True)
    return np.array(group, np.uint64), *(np.array(c, np.float32) for c in (score, label, weight))


def group_auc(group_N, score_N, label_N, weight_N=None, batch=7):
    auc = GroupMetrics()
    for begin in range(0, len(group_N), batch):
        of = slice(begin, begin + batch)
        auc.add(score_N[of], label_N[of], group_N[of], None if weight_N is None else weight_N[of])
    return tuple(auc.result().values())


def one_by_one(group_N, score_N, label_N, weight_N):
    """As FuxiCTR: roc_auc_score of each group that has both classes, times its size."""
    area = counted = 0.0
    for group in np.unique(group_N):
        of = group_N == group
        label, weight = label_N[of], weight_N[of].astype(np.float64)
        if weight[label == 0].sum() > 0 and weight[label == 1].sum() > 0:
            area += weight.sum() * roc_auc_score(label, score_N[of], sample_weight=weight)
            counted += weight.sum()
    weight = weight_N.astype(np.float64).sum()
    return area / counted if counted else math.nan, counted / weight if weight else math.nan


@few
@given(examples, st.booleans())
def test_the_mean_equals_scikit_learn_by_sizes_or_weights(rows, weighted):
    *given_columns, weight = columns(rows)
    used = [weight] if weighted else []
    expected = one_by_one(*given_columns, weight if weighted else np.ones_like(weight))
    assert group_auc(*given_columns, *used) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@few
@given(examples, st.booleans(), st.randoms(use_true_random=False))
def test_batches_pieces_and_order_never_change_the_bits(rows, weighted, random):
    expected = group_auc(*columns(rows)[: 4 if weighted else 3])
    random.shuffle(rows)
    for piece, batch in ((1, 3), (2, 1), (7, 60), (16, 5)):
        with patch("pipeline.metrics.auc.PIECE", piece):
            result = group_auc(*columns(rows)[: 4 if weighted else 3], batch=batch)
        assert np.array_equal(result, expected, equal_nan=True)


@few
@given(examples, st.integers(1, 8), st.randoms(use_true_random=False))
def test_ranks_of_any_order_are_those_of_the_kernel(rows, top, random):
    group, score, label, _ = columns(rows)
    order = np.unique(score + 0.0, return_inverse=True)[1]
    recall, ndcg, counted = group_ranks_reference(group, order, label == 1, top)
    random.shuffle(rows)
    group, score, label, _ = columns(rows)
    metrics = GroupMetrics(top)
    for begin in range(0, len(rows), 7):
        metrics.add(score[begin : begin + 7], label[begin : begin + 7], group[begin : begin + 7])
    found = metrics.result()
    expected = (recall / counted, ndcg / counted) if counted else (math.nan, math.nan)
    assert (found["recall"], found["ndcg"]) == pytest.approx(expected, rel=1e-12, nan_ok=True)
