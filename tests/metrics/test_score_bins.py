"""AUC of more scores than are kept: in bins, with a bound of the error, against all pairs and the exact AUC."""

import math
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import some

from pipeline.metrics import auc
from pipeline.metrics.auc import AUC, pack_scores

scores = st.one_of(
    st.sampled_from([-1.5, -0.0, 0.0, 0.25, 0.25000003, math.inf]),
    st.floats(-9, 9, width=32),
    st.floats(-9, -8.984375, width=32),
)
weights = st.sampled_from([0.0, 1.0, 2.0, 7.0])
examples = st.lists(st.tuples(scores, st.booleans(), weights), min_size=1, max_size=60)


@contextmanager
def limits(exact, most, binned):
    """Numbers of scores that are kept, of bins, and of scores that are added to them together."""
    with (
        patch.object(auc, "EXACT_SCORES", exact),
        patch.object(auc, "BINNED", binned),
        patch.object(auc, "MOST_BINS", most),
    ):
        yield


def fed(columns, batch, found=None):
    found = found or AUC()
    for begin in range(0, len(columns[0]), batch):
        found.add(*(None if column is None else column[begin : begin + batch] for column in columns))
    return found


def joined(parts, batch):
    """Evaluation of workers that have these parts."""
    together = AUC()
    for part in parts:
        for piece in fed(part, batch).take():
            together.join(piece)
    return together


def by_definition(score, label, weight, most):
    """AUC and bound of all pairs, in the smallest bins of which there are at most `most`."""
    order = (pack_scores(score, label, None) >> np.uint64(32)).astype(np.int64)
    shift = next(bits for bits in range(33) if len(set(order >> bits)) <= most)
    yes, no = label == 1, label == 0
    pairs = weight[yes, None].astype(float) * weight[None, no]
    bins = order >> shift
    same = bins[yes, None] == bins[None, no]
    right = (bins[yes, None] > bins[None, no]) + 0.5 * same
    if not pairs.sum():
        return math.nan, math.nan
    return (right * pairs).sum() / pairs.sum(), (same * pairs).sum() / 2 / pairs.sum() if shift else 0.0


@settings(max_examples=100, deadline=None)
@given(examples, st.integers(1, 40), st.integers(1, 8), st.integers(1, 9), st.lists(st.integers(0, 2), min_size=60))
def test_bins_are_the_smallest_that_are_few_enough(rows, most, binned, batch, worker_of):
    """For one worker and for three, in any batches: with whole weights to the last bit the same."""
    columns = [np.array(column, np.float32) for column in zip(*rows, strict=True)]
    expected = by_definition(*columns, most)
    parts = [[column[np.array(worker_of[: len(rows)]) == rank] for column in columns] for rank in range(3)]
    with limits(0, most, binned):
        found = fed(columns, batch).result()
        assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)
        for other in (fed(columns, 60), joined(parts, batch)):
            assert np.array_equal(other.result(), found, equal_nan=True)


@pytest.mark.parametrize("exact", [59, 60])
def test_scores_are_binned_from_one_more_than_are_kept_on(exact):
    rng = np.random.default_rng(1)
    columns = rng.random(60, np.float32), (rng.random(60) < 0.3).astype(np.float32)
    with limits(exact, 5, 7):
        alone = fed(columns, 9).result()
        halves = joined([[column[part] for column in columns] for part in (slice(0, 21), slice(21, 60))], 4).result()
    assert alone == halves
    assert (alone[1] > 0) == (exact < 60)
    whole = fed(columns, 60).result()[0]
    assert alone[0] == whole if exact == 60 else 0 < abs(alone[0] - whole) <= alone[1]


def test_a_second_split_forgets_the_bins_of_the_first():
    label = np.arange(40, dtype=np.float32) % 2
    with limits(9, 5, 7):
        found = fed((np.arange(40, dtype=np.float32), label), 3)
        first = found.result()
        assert math.isnan(found.result()[0])
        assert fed((np.arange(40, dtype=np.float32), label), 3, found).result() == first


SIZES = [
    (1 << 12, 1 << 12, 1 << 10, 1 << 17),
    pytest.param((1 << 24, 1 << 22, 1 << 20, 20 << 20), marks=pytest.mark.prove),
]


@pytest.mark.parametrize("sizes", SIZES, ids=["small", "whole"])
@pytest.mark.parametrize("deviation", some([1, 0.3, 0.01], 1, 0.01))
@pytest.mark.parametrize("rate", some([0.2, 1e-3, 1e-4], 0.2, 1e-4))
@pytest.mark.parametrize("weighted", some([False, True], True))
def test_the_error_is_within_its_bound_and_tiny(sizes, rate, deviation, weighted):
    """Below 1e-6 with the number of bins of a run; inversely proportional to it."""
    (exact, most, binned, num), rng = sizes, np.random.default_rng(7)
    score = (math.log(rate / (1 - rate)) + deviation * rng.standard_normal(num)).astype(np.float32)
    label = (rng.random(num) < 1 / (1 + np.exp(-score.astype(float)))).astype(np.float32)
    columns = (score, label, rng.random(num, np.float32) if weighted else None)
    with limits(num, most, binned):
        expected, zero = fed(columns, binned).result()
    assert zero == 0
    parts = [[None if column is None else column[rank::2] for column in columns] for rank in range(2)]
    with limits(exact, most, binned):
        alone, together, again = fed(columns, binned), joined(parts, binned), joined(parts, binned)
        found, bound = alone.result()
        of_two = together.result()
        assert of_two == again.result()
    assert abs(found - expected) <= bound + 1e-12
    assert bound < 1e-6 * (1 << 22) / most
    assert of_two == pytest.approx((found, bound), abs=1e-12)
    assert weighted or of_two == (found, bound)
