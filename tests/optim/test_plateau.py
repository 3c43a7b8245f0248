"""What validation says about the next epoch."""

import math

import pytest

from pipeline.optim.plateau import Verdict, judge
from pipeline.optimizer import Plateau


@pytest.mark.parametrize(
    ("aucs", "expected"),
    [
        ([], Verdict(None, 0, 0)), ([0.5], Verdict(0, 0, 0)), ([0.5, 0.6], Verdict(1, 0, 0)),
        ([0.6, 0.5], Verdict(0, 1, 1)), ([0.6, 0.5, 0.55], Verdict(0, 2, 2)), ([0.6, 0.5, 0.7], Verdict(2, 1, 0)),
        ([0.6, 0.6 + 1e-7], Verdict(0, 1, 1)), ([math.nan, 0.6], Verdict(1, 1, 0)), ([math.nan], Verdict(None, 1, 1)),
    ],
)  # fmt: skip
def test_another_epoch_is_the_best_or_another_number_was_worse(aucs, expected):
    assert judge("auc", aucs) == expected


def test_a_higher_logloss_is_better():
    assert judge("logloss", [0.5, 0.4, 0.45]) == Verdict(1, 1, 1)


def test_a_learning_rate_is_reduced_past_its_floor_or_raised_to_it():
    plateau = Plateau(lr_factor=0.1, lr_floor=1e-5)
    assert Verdict(worse=2).lr(1e-3, plateau) == pytest.approx(1e-5)
    assert Verdict(worse=5).lr(1e-3, plateau) == 1e-5
    assert Verdict(worse=5).lr(1e-6, plateau) == 1e-6
    assert Verdict(worse=5).lr(1e-3, None) == 1e-3


def test_a_run_stops_too_early_or_never():
    assert Verdict(0, 2, 2).stops(Plateau(stop_after=2))
    assert not Verdict(0, 3, 1).stops(Plateau(stop_after=2))
    assert not Verdict(0, 9, 9).stops(Plateau())
    assert not Verdict(0, 9, 9).stops(None)
