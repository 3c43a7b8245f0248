"""What is reported of a split, against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from pipeline.metrics import auc
from pipeline.metrics.evaluation import Evaluation
from pipeline.metrics.rates import cross_entropy, probability


def split(num=500, labels=1, seed=0):
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(num, labels)).astype(np.float32)
    targets = (rng.random((num, labels)) < 0.4).astype(np.float32)
    return outputs, targets, rng.random(num, np.float32)


def evaluate(evaluation, outputs, targets, weights=None, groups=None, batch=64):
    for begin in range(0, len(outputs), batch):
        of = slice(begin, begin + batch)
        of_each = [None if column is None else column[of] for column in (weights, groups)]
        evaluation.add(outputs[of], targets[of], *of_each)
    return evaluation.result()


@pytest.mark.parametrize("weighted", [False, True])
def test_one_label_equals_scikit_learn(weighted):
    outputs, targets, weights = split()
    used = weights if weighted else None
    result = evaluate(Evaluation(("click",)), outputs, targets, used)
    assert list(result) == ["auc", "logloss", "ne", "calibration", "examples"]
    chance = 1 / (1 + np.exp(-outputs[:, 0].astype(np.float64)))
    area = roc_auc_score(targets[:, 0], outputs[:, 0], sample_weight=used)
    assert result["auc"] == pytest.approx(area, abs=1e-12)
    assert result["logloss"] == pytest.approx(log_loss(targets[:, 0], chance, sample_weight=used), rel=1e-12)
    assert result["examples"] == 500
    mean = np.average(targets[:, 0].astype(np.float64), weights=used)
    background = log_loss(targets[:, 0], np.full(500, mean), sample_weight=used)
    assert result["ne"] == pytest.approx(result["logloss"] / background, rel=1e-12)
    assert result["calibration"] == pytest.approx(np.average(chance, weights=used) / mean, rel=1e-12)


def test_predicting_the_mean_gives_ne_and_calibration_of_one():
    targets = np.array([[1], [0], [0], [0]], np.float32)
    outputs = np.full((4, 1), -np.log(3.0), np.float32)
    result = evaluate(Evaluation(("click",)), outputs, targets)
    assert result["ne"] == pytest.approx(1, abs=1e-7)
    assert result["calibration"] == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_within_groups_equals_scikit_learn(weighted):
    outputs, targets, weights = split()
    groups = np.random.default_rng(3).integers(0, 90, 500).astype(np.uint64)
    evaluation = Evaluation(("click",), grouped=True)
    result = evaluate(evaluation, outputs, targets, weights if weighted else None, groups)
    used, area, counted = weights if weighted else np.ones(500), 0.0, 0.0
    for group in range(90):
        of = groups == group
        if len(set(targets[of, 0])) == 2:
            size = used[of].sum(dtype=float)
            area += size * roc_auc_score(targets[of, 0], outputs[of, 0], sample_weight=used[of])
            counted += size
    assert result["gauc"] == pytest.approx(area / counted, abs=1e-12)
    assert result["gauc_share"] == pytest.approx(counted / used.sum(dtype=float), abs=1e-12)
    assert 0.5 < result["gauc_share"] < 1
    without = evaluate(Evaluation(("click",)), outputs, targets, weights if weighted else None)
    assert {name: value for name, value in result.items() if not name.startswith("gauc")} == without


def test_a_label_scores_as_if_it_were_alone():
    outputs, targets, weights = split(labels=2)
    groups = np.arange(500, dtype=np.uint64) // np.uint64(9)
    result = evaluate(Evaluation(("click", "buy"), grouped=True), outputs, targets, weights, groups)
    for t, label in enumerate(("click", "buy")):
        one = Evaluation((label,), grouped=True)
        alone = evaluate(one, outputs[:, t : t + 1], targets[:, t : t + 1], weights, groups)
        for name in ("auc", "logloss", "ne", "calibration", "gauc", "gauc_share"):
            assert result[f"{name}_{label}"] == alone[name]
            assert label != "click" or result[name] == alone[name]
    assert result["auc"] != result["auc_buy"]


@pytest.mark.parametrize("groups", [None, np.arange(500, dtype=np.uint64) // np.uint64(9)], ids=["alone", "groups"])
def test_second_split_forgets_the_first(groups):
    evaluation, other = (Evaluation(("click",), grouped=groups is not None) for _ in range(2))
    evaluate(evaluation, *split(seed=1), groups)
    assert evaluate(evaluation, *split(seed=2), groups) == evaluate(other, *split(seed=2), groups)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=120), st.integers(1, 2), st.booleans(), st.booleans(),
    st.integers(0, 2**16),
)  # fmt: skip
def test_parts_of_workers_give_the_metrics_of_all_examples(worker_of, num_labels, weighted, grouped, seed):
    """Twice in a row; equal scores, and workers without examples, are among them."""
    labels = ("click", "buy")[:num_labels]
    workers = [Evaluation(labels, grouped) for _ in range(6)]
    for again in range(2):
        outputs, targets, weights = split(len(worker_of), num_labels, seed + again)
        outputs = outputs.round(1)
        groups = (np.arange(len(outputs)) % 7).astype(np.uint64)
        columns = (outputs, targets, weights if weighted else None, groups if grouped else None)
        expected = evaluate(Evaluation(labels, grouped), *columns)
        together = Evaluation(labels, grouped)
        for rank, worker in enumerate(workers):
            of = np.array(worker_of) == rank
            add_all(worker, *(None if column is None else column[of] for column in columns))
            closed, tables = worker.close()
            together.join(closed, tables.__getitem__)
        check_joined(together.result(), expected)


def test_a_bound_of_the_error_is_reported_if_it_is_not_tiny(monkeypatch):
    outputs, targets, _ = split(labels=2)
    exact = evaluate(Evaluation(("click", "buy")), outputs, targets)
    assert not any(name.startswith("auc_bound") for name in exact)
    monkeypatch.setattr(auc, "EXACT_SCORES", 499)
    monkeypatch.setattr(auc, "MOST_BINS", 64)
    found = evaluate(Evaluation(("click", "buy")), outputs, targets)
    assert list(found)[:2] == ["auc", "auc_bound"]
    assert found["auc_bound"] == found["auc_bound_click"] > 1e-6
    for label in ("click", "buy"):
        error = abs(found[f"auc_{label}"] - exact[f"auc_{label}"])
        assert error <= found[f"auc_bound_{label}"] + 1e-15 < 0.02
    assert {name: found[name] for name in exact if not name.startswith("auc")} == {
        name: value for name, value in exact.items() if not name.startswith("auc")
    }


def add_all(evaluation, outputs, targets, weights, groups):
    for at in range(len(outputs)):
        of = slice(at, at + 1)
        evaluation.add(outputs[of], targets[of], *(None if c is None else c[of] for c in (weights, groups)))


def check_joined(found, expected):
    """Areas are of one sorted order, bit for bit; sums were added in another."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        if name.startswith(("auc", "gauc")) or name == "examples":
            assert found[name] == value or (math.isnan(value) and math.isnan(found[name])), name
        else:
            assert found[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name


def test_large_logits_have_exact_losses_and_probabilities():
    logits = np.array([1e4, -1e4, np.inf, np.inf, 3e38], np.float32)
    assert cross_entropy(logits, np.array([0, 0, 1, 0, 1], np.float32)).tolist() == [1e4, 0, 0, math.inf, 0]
    assert probability(np.array([1e4, -1e4, np.inf, -np.inf, 0], np.float32)).tolist() == [1, 0, 1, 0, 0.5]


def test_empty_split_is_refused():
    with pytest.raises(ValueError, match="without examples"):
        Evaluation(("click",)).result()


def test_one_class_or_no_weight_gives_nan():
    outputs, targets, _ = split(num=10)
    evaluation = Evaluation(("click",))
    cases = (
        (np.zeros_like(targets), None, {"auc", "ne", "calibration"}),
        (np.ones_like(targets), None, {"auc", "ne"}),
        (targets, np.zeros(10, np.float32), {"auc", "logloss", "ne", "calibration"}),
    )
    for labels, weights, expected in cases:
        found = evaluate(evaluation, outputs, labels, weights)
        assert {name for name, value in found.items() if math.isnan(value)} == expected


def test_diverged_outputs_are_reported():
    outputs, targets, _ = split(num=10)
    outputs[2] = np.nan
    with pytest.raises(ValueError, match="1 of 10 scores are NaN: training diverged"):
        Evaluation(("click",)).add(outputs, targets, None)
