"""AUC and logloss of an evaluated split."""

import math

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from pipeline.monitor.metrics import Evaluation, cross_entropy


def split(num=500, labels=1, seed=0):
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(num, labels)).astype(np.float32)
    targets = (rng.random((num, labels)) < 0.4).astype(np.float32)
    return outputs, targets, rng.random(num, np.float32)


def evaluate(evaluation, outputs, targets, weights=None, batch=64):
    for begin in range(0, len(outputs), batch):
        part = slice(begin, begin + batch)
        evaluation.add(outputs[part], targets[part], None if weights is None else weights[part])
    return evaluation.result()


@pytest.mark.parametrize("weighted", [False, True])
def test_one_label_equals_scikit_learn(tmp_path, weighted):
    outputs, targets, weights = split()
    used = weights if weighted else None
    result = evaluate(Evaluation(("click",), tmp_path, bound=100), outputs, targets, used)
    assert list(result) == ["auc", "logloss", "examples"]
    chance = 1 / (1 + np.exp(-outputs[:, 0].astype(np.float64)))
    auc = roc_auc_score(targets[:, 0], outputs[:, 0], sample_weight=used)
    assert result["auc"] == pytest.approx(auc, abs=1e-12)
    assert result["logloss"] == pytest.approx(log_loss(targets[:, 0], chance, sample_weight=used), rel=1e-12)
    assert result["examples"] == 500


def test_a_label_scores_as_if_it_were_alone(tmp_path):
    outputs, targets, weights = split(labels=2)
    result = evaluate(Evaluation(("click", "buy"), tmp_path), outputs, targets, weights)
    for t, label in enumerate(("click", "buy")):
        alone = evaluate(Evaluation((label,), tmp_path), outputs[:, t : t + 1], targets[:, t : t + 1], weights)
        assert result[f"auc_{label}"] == alone["auc"]
        assert result[f"logloss_{label}"] == alone["logloss"]
    assert (result["auc"], result["logloss"]) == (result["auc_click"], result["logloss_click"])
    assert result["auc"] != result["auc_buy"]


def test_second_split_forgets_the_first(tmp_path):
    evaluation = Evaluation(("click",), tmp_path, bound=50)
    evaluate(evaluation, *split(seed=1))
    fresh = evaluate(Evaluation(("click",), tmp_path), *split(seed=2))
    assert evaluate(evaluation, *split(seed=2)) == fresh


def test_large_logits_do_not_overflow():
    logits = np.array([[1e4], [-1e4], [np.inf], [np.inf], [3e38]], np.float32)
    labels = np.array([[0], [0], [1], [0], [1]], np.float32)
    assert cross_entropy(logits, labels)[:, 0].tolist() == [1e4, 0, 0, math.inf, 0]


def test_empty_split_is_refused(tmp_path):
    with pytest.raises(ValueError, match="without examples"):
        Evaluation(("click",), tmp_path).result()


def test_one_class_or_no_weight_gives_nan(tmp_path):
    outputs, targets, _ = split(num=10)
    evaluation = Evaluation(("click",), tmp_path)
    one_class = evaluate(evaluation, outputs, np.zeros_like(targets))
    assert math.isnan(one_class["auc"])
    assert math.isfinite(one_class["logloss"])
    no_weight = evaluate(evaluation, outputs, targets, np.zeros(10, np.float32))
    assert math.isnan(no_weight["auc"])
    assert math.isnan(no_weight["logloss"])


def test_diverged_outputs_are_reported(tmp_path):
    outputs, targets, _ = split(num=10)
    outputs[2] = np.nan
    with pytest.raises(ValueError, match="1 of 10 scores are NaN: training diverged"):
        Evaluation(("click",), tmp_path).add(outputs, targets, None)
