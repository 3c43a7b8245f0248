"""The clicks of `benchmarks.large_batch` are as rare as it says, and no model can be better than it says."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.large_batch.data import RARE, Planted, draw_keys, effects, ensure, sums
from benchmarks.large_batch.table import standard_error

SMALL = Planted(train=20_000, test=20_000, keys_per_field=(400, 200, 50, 10))


def columns(root, split):
    return pq.read_table(root / split / "part-0.parquet").to_pydict()


def test_every_key_occurs_and_half_of_them_are_rare():
    planted = Planted()
    keys_NF = draw_keys(planted, np.random.default_rng(0), planted.train, every_key=True)
    assert keys_NF.shape == (planted.train, len(planted.keys_per_field))
    pairs = zip(keys_NF.T, planted.keys_per_field, strict=True)
    counts_K = np.concatenate([np.bincount(column, minlength=num_keys) for column, num_keys in pairs])
    assert len(counts_K) == sum(planted.keys_per_field) == 100_000
    assert counts_K.min() >= 1
    assert 0.48 < (counts_K < RARE).mean() < 0.55


def test_every_pair_of_fields_is_in_the_logit():
    rng = np.random.default_rng(1)
    keys_NF = draw_keys(SMALL, rng, 50, every_key=False)
    main_K, latent_KR = effects(SMALL, rng, keys_NF)
    starts = np.cumsum([0, *SMALL.keys_per_field[:-1]])
    main_N, pairs_N = sums(SMALL, main_K, latent_KR, keys_NF)
    for keys_F, main, pairs in zip(keys_NF, main_N, pairs_N, strict=True):
        at_F = starts + keys_F
        assert main == pytest.approx(main_K[at_F].sum())
        of_two = [latent_KR[at_F[f]] @ latent_KR[at_F[g]] for g in range(len(at_F)) for f in range(g)]
        assert pairs == pytest.approx(sum(of_two))
    assert (main_N.std(), pairs_N.std()) == pytest.approx((SMALL.main_std, SMALL.pair_std))


def test_the_best_possible_auc_is_that_of_the_true_logit(tmp_path):
    known = ensure(SMALL, tmp_path)
    rng = np.random.default_rng(SMALL.seed)
    train_NF = draw_keys(SMALL, rng, SMALL.train, every_key=True)
    test_NF = draw_keys(SMALL, rng, SMALL.test, every_key=False)
    logits_N = sum(sums(SMALL, *effects(SMALL, rng, train_NF), test_NF))
    test = columns(tmp_path, "test")
    assert np.array_equal(test["c2"], test_NF[:, 2])
    assert known["bayes_auc"] == roc_auc_score(test["label"], logits_N)
    assert 0.78 < known["bayes_auc"] < 0.87
    assert (known["positives"], known["negatives"]) == (sum(test["label"]), SMALL.test - sum(test["label"]))
    assert known["positives"] / SMALL.test == pytest.approx(SMALL.positive_rate, abs=0.02)


def test_the_same_parameters_make_the_same_data_and_others_none(tmp_path):
    known = ensure(SMALL, tmp_path / "one")
    assert ensure(SMALL, tmp_path / "two") == known == ensure(SMALL, tmp_path / "one")
    for split in ("train", "test"):
        assert columns(tmp_path / "one", split) == columns(tmp_path / "two", split)
    with pytest.raises(ValueError, match="holds data of other parameters"):
        ensure(replace(SMALL, seed=1), tmp_path / "one")


def test_the_standard_error_is_that_of_repeated_draws():
    rng = np.random.default_rng(2)
    labels_N = np.arange(600) < 200
    aucs = [roc_auc_score(labels_N, rng.standard_normal(600) + labels_N) for _ in range(400)]
    assert standard_error(float(np.mean(aucs)), 200, 400) == pytest.approx(np.std(aucs), rel=0.15)
