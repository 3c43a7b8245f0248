"""Decisions after each epoch's validation: whether to train another epoch, and at which learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.settings.optimizer import Plateau

LESS_IS_BETTER = ("logloss", "ne", "mse", "rmse", "mae")


@dataclass(frozen=True, slots=True)
class EpochVerdict:
    """Summary of the validations of all epochs so far."""

    best: int | None = None
    """Number of the best epoch, counted from 0; None until an epoch has a finite metric."""
    worse: int = 0
    """Number of epochs that were not better than the best epoch before them. An epoch with an undefined metric is
    neither better nor worse."""
    in_a_row: int = 0
    """Number of such epochs since the best one."""

    def stops(self, plateau: Plateau | None) -> bool:
        return bool(plateau and plateau.stop_after and self.in_a_row >= plateau.stop_after)

    def lr(self, lr: float, plateau: Plateau | None) -> float:
        """Apply all reductions so far to a learning rate."""
        for _ in range(self.worse if plateau else 0):
            assert plateau
            lr = max(lr * plateau.lr_factor, min(lr, plateau.lr_floor))
        return lr


def judge(metric: str, values: Sequence[float], min_gain: float) -> EpochVerdict:
    """Judge all epochs by `values` of a metric, one per epoch. An epoch is better if it improves on the best so far by
    more than `min_gain`. For metrics in `LESS_IS_BETTER`, less is better. Values that are not finite are undefined."""
    best, worse, in_a_row = None, 0, 0
    goods = [-value if metric in LESS_IS_BETTER else value for value in values]
    for epoch, good in enumerate(goods):
        if not math.isfinite(good):
            continue
        if best is None or good > goods[best] + min_gain:
            best, in_a_row = epoch, 0
        else:
            worse, in_a_row = worse + 1, in_a_row + 1
    return EpochVerdict(best, worse, in_a_row)
