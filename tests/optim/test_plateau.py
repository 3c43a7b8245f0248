"""What validation says about the next epoch."""

import math

import pytest

from pipeline.optim.plateau import EpochVerdict, judge
from pipeline.settings.optimizer import Plateau


@pytest.mark.parametrize(
    ("aucs", "expected"),
    [
        ([], EpochVerdict(None, 0, 0)), ([0.5], EpochVerdict(0, 0, 0)), ([0.5, 0.6], EpochVerdict(1, 0, 0)),
        ([0.6, 0.5], EpochVerdict(0, 1, 1)), ([0.6, 0.5, 0.55], EpochVerdict(0, 2, 2)),
        ([0.6, 0.5, 0.7], EpochVerdict(2, 1, 0)), ([0.6, 0.6 + 1e-7], EpochVerdict(0, 1, 1)),
        ([math.nan, 0.6, 0.5], EpochVerdict(1, 1, 1)), ([math.nan] * 3, EpochVerdict(None, 0, 0)),
        ([0.6, math.nan, math.nan], EpochVerdict(0, 0, 0)), ([0.6, math.nan, 0.5], EpochVerdict(0, 1, 1)),
        ([0.6, math.inf, 0.7], EpochVerdict(2, 0, 0)),
    ],
)  # fmt: skip
def test_the_verdict_names_the_best_epoch_and_counts_the_worse_ones(aucs, expected):
    assert judge("auc", aucs, 1e-6) == expected


def test_a_lower_logloss_is_better():
    assert judge("logloss", [0.5, 0.4, 0.45], 1e-6) == judge("ne", [0.5, 0.4, 0.45], 1e-6) == EpochVerdict(1, 1, 1)


def test_a_gain_that_is_too_small_is_none():
    assert judge("auc", [0.6, 0.61, 0.615], 0.02) == EpochVerdict(0, 2, 2)


def test_a_learning_rate_is_reduced_to_its_floor_and_never_raised():
    plateau = Plateau(lr_factor=0.1, lr_floor=1e-5)
    assert EpochVerdict(worse=2).lr(1e-3, plateau) == pytest.approx(1e-5)
    assert EpochVerdict(worse=5).lr(1e-3, plateau) == 1e-5
    assert EpochVerdict(worse=5).lr(1e-6, plateau) == 1e-6
    assert EpochVerdict(worse=5).lr(1e-3, None) == 1e-3


def test_a_run_stops_after_the_set_number_of_worse_epochs_in_a_row():
    assert EpochVerdict(0, 2, 2).stops(Plateau(stop_after=2))
    assert not EpochVerdict(0, 3, 1).stops(Plateau(stop_after=2))
    assert not EpochVerdict(0, 9, 9).stops(Plateau())
    assert not EpochVerdict(0, 9, 9).stops(None)
