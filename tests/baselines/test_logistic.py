"""Logistic regression of the baselines: the optimum that scikit-learn finds, and features as a plain loop has them."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pipeline.baselines import logistic
from pipeline.baselines.logistic import fitted
from pipeline.baselines.one_hot import NUM_RANGES, Lists, OneHot, edges_of

N, M = 400, 20


def examples(seed=0, with_lists=True):
    """Examples with two columns of single values, and one of lists, of M features; feature 0 is of unseen values."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, N)
    rows = np.repeat(np.arange(N), lengths)
    lists = Lists(rows, rng.integers(0, M, len(rows)), 1 / lengths[rows])
    single = rng.integers(0, M, (2, N))
    labels = (rng.random((N, 1)) < 0.3).astype(np.float32)
    return OneHot(labels, rng.random(N), single, (lists,) if with_lists else ())


def matrix(of):
    """[N, M] features as a plain loop writes them."""
    found = np.zeros((N, M))
    for features in of.single_CN:
        for n, feature in enumerate(features):
            found[n, feature] += 1
    for column in of.lists:
        for row, feature, share in zip(column.rows_V, column.features_V, column.shares_V, strict=True):
            found[row, feature] += share
    return found


def test_sums_are_products_with_the_matrix_of_features():
    of, rng = examples(), np.random.default_rng(1)
    weights, values = rng.normal(size=M), rng.normal(size=N)
    np.testing.assert_allclose(of.sums(weights), matrix(of) @ weights)
    np.testing.assert_allclose(of.back(values, M), matrix(of).T @ values)


@pytest.mark.parametrize("l2", [0.5, 10.0])
def test_the_optimum_is_that_of_scikit_learn(monkeypatch, l2):
    monkeypatch.setattr(logistic, "STEPS", 200)
    of = examples()
    labels = of.labels_NT[:, 0].astype(float)
    found = fitted(of, labels, of.weights_N, l2, np.zeros(M + 1))
    x = matrix(of)
    x[:, 0] = 0
    exact = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=5000).fit(x, labels, of.weights_N)
    np.testing.assert_allclose(found[:-1], exact.coef_[0], atol=1e-4)
    assert found[-1] == pytest.approx(exact.intercept_[0], abs=1e-4)


def test_few_steps_come_close_to_the_optimum(monkeypatch):
    of = examples()
    labels = of.labels_NT[:, 0].astype(float)

    def objective(w):
        logits = of.sums(w[:-1]) + w[-1]
        return (of.weights_N * (np.logaddexp(0, logits) - labels * logits)).sum() + 5 * w[:-1] @ w[:-1]

    few = objective(fitted(of, labels, of.weights_N, 10.0, np.zeros(M + 1)))
    monkeypatch.setattr(logistic, "STEPS", 200)
    assert few <= 1.001 * objective(fitted(of, labels, of.weights_N, 10.0, np.zeros(M + 1)))


def test_ranges_divide_the_values_other_than_the_most_frequent():
    rng = np.random.default_rng(0)
    values = np.where(rng.random(10_000) < 0.96, 0, rng.exponential(5, 10_000)).astype(np.float32)
    ranges = np.searchsorted(edges_of(values), values, "right")
    assert len({*ranges[values == 0]}) == 1
    others = np.unique(ranges[values != 0], return_counts=True)[1]
    assert len(others) >= NUM_RANGES - 1
    assert others.max() < 3 * others.mean()
    assert len(edges_of(np.zeros(5, np.float32))) <= 2
