"""The clicks of `benchmarks.large_batch` are as rare as it says, and no model can be better than it says."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.large_batch.data import RARE, Planted, draw_keys, effects, ensure, sums


def test_every_key_occurs_and_half_of_them_are_rare():
    planted = Planted()
    keys_NF = draw_keys(planted, np.random.default_rng(0), planted.train, every_key=True)
    pairs = zip(keys_NF.T, planted.keys_per_field, strict=True)
    counts_K = np.concatenate([np.bincount(column, minlength=num_keys) for column, num_keys in pairs])
    assert len(counts_K) == sum(planted.keys_per_field) == 100_000
    assert counts_K.min() >= 1
    assert 0.48 < (counts_K < RARE).mean() < 0.55


def test_the_best_possible_auc_is_that_of_the_true_logit(tmp_path):
    planted = Planted(train=20_000, test=20_000, keys_per_field=(400, 200, 50, 10))
    known = ensure(planted, tmp_path)
    rng = np.random.default_rng(planted.seed)
    train_NF = draw_keys(planted, rng, planted.train, every_key=True)
    test_NF = draw_keys(planted, rng, planted.test, every_key=False)
    logits_N = sum(sums(planted, *effects(planted, rng, train_NF), test_NF))
    test = pq.read_table(tmp_path / "test" / "part-0.parquet").to_pydict()
    assert np.array_equal(test["c2"], test_NF[:, 2])
    assert known["bayes_auc"] == roc_auc_score(test["label"], logits_N)
    assert 0.78 < known["bayes_auc"] < 0.87
    assert known["positives"] / planted.test == pytest.approx(planted.positive_rate, abs=0.02)
