"""Exact AUC against a quadratic reference and scikit-learn."""

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from pipeline.metrics.auc import AUC

few = settings(max_examples=60, deadline=None)
scores = st.one_of(
    st.sampled_from([-1.5, -0.0, 0.0, 0.25, 3.0]), st.floats(width=32, allow_nan=False, allow_infinity=False)
)
weights = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1e6, width=32))
examples = st.lists(st.tuples(scores, st.booleans(), weights), min_size=1, max_size=60)


def columns(rows):
    score, label, weight = zip(*rows, strict=True)
    return np.array(score, np.float32), np.array(label, np.float32), np.array(weight, np.float32)


def feed(auc, scores_N, labels_N, weights_N, batch):
    for begin in range(0, len(scores_N), batch):
        part = slice(begin, begin + batch)
        auc.add(scores_N[part], labels_N[part], None if weights_N is None else weights_N[part])
    area, bound = auc.result()
    assert bound == 0
    return area


def exact_auc(scores_N, labels_N, weights_N=None, batch=7):
    return feed(AUC(), scores_N, labels_N, weights_N, batch)


def pairwise(scores_N, labels_N, weights_N):
    """Share of positive-negative pairs in the right order, ties counted half."""
    score, weight = scores_N.astype(np.float64), weights_N.astype(np.float64)
    yes, no = labels_N == 1, labels_N == 0
    right = (score[yes, None] > score[None, no]) + 0.5 * (score[yes, None] == score[None, no])
    pair_weights = weight[yes, None] * weight[None, no]
    return (right * pair_weights).sum() / pair_weights.sum()


def random_columns(num, seed=0, distinct=40):
    rng = np.random.default_rng(seed)
    scores_N = rng.integers(0, distinct, num).astype(np.float32) / 8 - 2
    labels_N = (rng.random(num) < 0.3).astype(np.float32)
    return scores_N, labels_N, rng.random(num, np.float32)


@few
@given(examples, st.booleans())
def test_auc_with_or_without_weights_equals_pairs_and_scikit_learn(rows, weighted):
    score, label, weight = columns(rows)
    weight = weight if weighted else np.ones_like(score)
    result = exact_auc(score, label, weight if weighted else None)
    if weight[label == 0].sum() == 0 or weight[label == 1].sum() == 0:
        assert math.isnan(result)
        return
    assert result == pytest.approx(pairwise(score, label, weight), abs=1e-12)
    assert result == pytest.approx(roc_auc_score(label, score, sample_weight=weight), abs=1e-12)


@few
@given(examples, st.booleans(), st.randoms(use_true_random=False))
def test_result_does_not_depend_on_pieces_or_batches_or_order(rows, weighted, random):
    score, label, weight = columns(rows)
    expected = exact_auc(score, label, weight if weighted else None)
    random.shuffle(rows)
    score, label, weight = columns(rows)
    for piece, batch in ((1, 3), (2, 1), (7, 60), (16, 5)):
        with patch("pipeline.metrics.auc.PIECE", piece):
            result = exact_auc(score, label, weight if weighted else None, batch)
        assert result == expected or (math.isnan(result) and math.isnan(expected))


def test_batches_are_copied():
    score, label, _ = random_columns(64)
    auc = AUC()
    expected = exact_auc(score, label)
    auc.add(score, label)
    score[:], label[:] = 0, 1
    assert auc.result()[0] == expected


def test_missing_weights_count_as_ones():
    score, label, _ = random_columns(64)
    auc = AUC()
    auc.add(score[:30], label[:30])
    auc.add(score[30:], label[30:], np.ones(34, np.float32))
    assert auc.result()[0] == exact_auc(score, label)


def test_infinite_scores_and_signed_zeros_rank_as_numbers():
    score = np.array([-np.inf, -0.0, 0.0, np.inf, 1e-45], np.float32)
    label = np.array([0, 1, 0, 1, 1], np.float32)
    assert exact_auc(score, label) == 5.5 / 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, y, w: s.__setitem__(slice(0, 3), np.nan), "3 of 8 scores are NaN: training diverged"),
        (lambda s, y, w: y.__setitem__(0, 0.5), "labels that are 0 or 1, but 1 of "),
        (lambda s, y, w: w.__setitem__(0, -1), "weights must be finite and not negative, .* such as -1; correct"),
        (lambda s, y, w: w.__setitem__(0, np.nan), "weights must be finite and not negative"),
    ],
)
def test_bad_batch_is_refused_whole(change, message):
    auc = AUC()
    batch = random_columns(8)
    change(*batch)
    with pytest.raises(ValueError, match=message):
        auc.add(*batch)
    assert math.isnan(auc.result()[0])
