"""Metrics of slices against scikit-learn's and plain NumPy, slice by slice."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from pipeline.metrics.evaluation import Evaluation
from pipeline.metrics.slices import NUM_WORST, SliceMetrics, interval

few = settings(max_examples=60, deadline=None)
ids = st.sampled_from([0, 1, 7, 1 << 63, (1 << 64) - 1])
scores = st.one_of(st.sampled_from([-1.5, -0.0, 0.0, 0.25]), st.floats(-9, 9, width=32))
weights = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0625, 1e4, width=32))
examples = st.lists(st.tuples(ids, scores, st.booleans(), weights), min_size=1, max_size=60)


def columns(rows):
    value, score, label, weight = zip(*rows, strict=True)
    return np.array(value, np.uint64), *(np.array(c, np.float32) for c in (score, label, weight))


def worst_of(value, score, label, weight=None, bound=1 << 20, batch=7):
    with tempfile.TemporaryDirectory() as spill:
        metrics = SliceMetrics(Path(spill), bound, "site", "click")
        for begin in range(0, len(value), batch):
            of = slice(begin, begin + batch)
            metrics.add(score[of], label[of], value[of], None if weight is None else weight[of])
        return metrics.worst()


def one_by_one(score, label, weight):
    """AUC, NE, calibration and its interval of one slice, as they are defined."""
    score, label, weight = (column.astype(np.float64) for column in (score, label, weight))
    if not weight.any():
        return [math.nan] * 5
    chance, mean = 1 / (1 + np.exp(-score)), np.average(label, weights=weight)
    both = 0 < mean < 1
    auc = roc_auc_score(label, score, sample_weight=weight) if both else math.nan
    ne = math.nan
    if both:
        ne = log_loss(label, chance, sample_weight=weight) / -(mean * math.log(mean) + (1 - mean) * math.log1p(-mean))
    equal = weight.sum() ** 2 / (weight**2).sum()
    observed, expected = mean * equal, np.average(chance, weights=weight) * equal
    most = (observed + 1) * (1 - 1 / (9 * (observed + 1)) + 1.96 / (3 * math.sqrt(observed + 1))) ** 3
    least = observed * (1 - 1 / (9 * observed) - 1.96 / (3 * math.sqrt(observed))) ** 3 if observed else 0
    return (
        auc,
        ne,
        expected / observed if mean else math.nan,
        expected / most,
        expected / least if least > 0 else math.nan,
    )


@few
@given(examples, st.booleans())
def test_figures_of_each_slice_are_their_definitions(rows, weighted):
    value, score, label, weight = columns(rows)
    used = weight if weighted else np.ones(len(rows), np.float32)
    found = worst_of(value, score, label, weight if weighted else None, bound=5)
    assert {one.key for one in found} == set(value.tolist())
    for one in found:
        of = value == one.key
        assert (one.examples, one.positives, one.num_slices) == (of.sum(), label[of].sum(), len(set(value.tolist())))
        figures = one.auc, one.ne, one.calibration, one.low, one.high
        expected = one_by_one(score[of], label[of], used[of])
        assert figures == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)


@few
@given(examples, st.booleans(), st.randoms(use_true_random=False))
def test_bound_and_order_never_change_the_bits_of_slices(rows, weighted, random):
    of_rows = lambda: columns(rows)[: 4 if weighted else 3]  # noqa: E731
    expected = repr(worst_of(*of_rows()))
    random.shuffle(rows)
    for bound, batch in ((1, 3), (2, 1), (7, 60)):
        assert repr(worst_of(*of_rows(), bound=bound, batch=batch)) == expected


def test_the_ten_slices_farthest_from_calibration_for_certain_are_kept():
    """Every value has a rate of 30 %; value v is predicted wrong by the more the larger it is. A value of one example
    that is predicted quite wrong is no sign of anything."""
    rng = np.random.default_rng(1)
    value = np.repeat(np.arange(20, dtype=np.uint64), 4000)
    label = (rng.random(len(value)) < 0.3).astype(np.float32)
    chance = 0.3 * 1.05 ** np.where(value % 2, value.astype(float), -value.astype(float))
    logit = np.log(chance / (1 - chance))
    value, label = np.append(value, np.uint64(99)), np.append(label, np.float32(1))
    found = worst_of(value, np.append(logit, -3).astype(np.float32), label, batch=10_000)
    assert len(found) == NUM_WORST
    assert {one.num_slices for one in found} == {21}
    assert {one.key for one in found} == set(range(10, 20))
    assert all(one.low > 1 if one.key % 2 else one.high < 1 for one in found)


def test_limits_of_a_poisson_mean_are_nearly_the_exact_ones():
    """Those of Garwood (1936), from tables."""
    exact = {0: (0, 3.689), 1: (0.0253, 5.572), 3: (0.6187, 8.767), 10: (4.795, 18.39), 100: (81.36, 121.63)}
    for observed, (least, most) in exact.items():
        low, high = interval(1.0, observed)
        assert 1 / low == pytest.approx(most, rel=0.01)
        assert math.isnan(high) if least == 0 else 1 / high == pytest.approx(least, rel=0.02, abs=0.02)


def test_a_slice_without_a_positive_is_bad_if_many_were_predicted():
    value = np.repeat(np.arange(2, dtype=np.uint64), 500)
    score = np.where(value == 0, -1.0, -6.0).astype(np.float32)
    first, second = worst_of(value, score, np.zeros(1000, np.float32))
    assert (first.key, first.positives) == (0, 0)
    assert math.isnan(first.calibration)
    assert math.isnan(first.high)
    assert first.low > 10
    assert second.low < 1


@few
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 2**16))
def test_slices_of_workers_are_those_of_all_examples(worker_of, seed):
    rng, labels = np.random.default_rng(seed), ("click", "dwell", "buy")
    size = len(worker_of)
    outputs, targets = rng.normal(size=(2, size, 3)).astype(np.float32)
    targets[:, ::2] = targets[:, ::2] > 0
    targets[rng.random(size) < 0.3, 2] = np.nan
    slices_SN = rng.integers(0, 4, (2, size)).astype(np.uint64)
    with tempfile.TemporaryDirectory() as folder:
        alone, together, *workers = (
            Evaluation(labels, Path(folder), 16, numbers=("dwell",), slices=("site", "hour")) for _ in range(6)
        )
        alone.add(outputs, targets, None, None, slices_SN)
        for rank, worker in enumerate(workers):
            of = np.array(worker_of) == rank
            worker.add(outputs[of], targets[of], None, None, slices_SN[:, of])
            closed, tables = worker.close()
            together.join(closed, tables.__getitem__)
        alone.result(), together.result()
    assert repr(together.worst) == repr(alone.worst)
    found = dict.fromkeys((one.column, one.label) for one in alone.worst)
    assert [*found][:1] == [("site", "click")]
    assert {label for _, label in found} <= {"click", "buy"}
