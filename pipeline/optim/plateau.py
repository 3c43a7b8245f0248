"""Judgement of each epoch's validation about the next one: whether to train it, and at which learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.optimizer import Plateau

BETTER = 1e-6
"""By which an epoch must exceed the best one so far."""


@dataclass(frozen=True, slots=True)
class EpochVerdict:
    """A verdict on all epochs so far."""

    best: int | None = None
    """Number of the best epoch, from 0; None as long as none has a metric that is a number."""
    worse: int = 0
    """Epochs that were not better than those before them."""
    in_a_row: int = 0
    """Of these, the last ones."""

    def stops(self, plateau: Plateau | None) -> bool:
        return bool(plateau and plateau.stop_after and self.in_a_row >= plateau.stop_after)

    def lr(self, lr: float, plateau: Plateau | None) -> float:
        """A learning rate after all reductions."""
        for _ in range(self.worse if plateau else 0):
            assert plateau
            lr = max(lr * plateau.lr_factor, min(lr, plateau.lr_floor))
        return lr


def judge(metric: str, values: Sequence[float]) -> EpochVerdict:
    """`values` of "auc" or "logloss", epoch by epoch."""
    best, worse, in_a_row = None, 0, 0
    goods = [-value if metric == "logloss" else value for value in values]
    for epoch, good in enumerate(goods):
        if math.isfinite(good) and (best is None or good > goods[best] + BETTER):
            best, in_a_row = epoch, 0
        else:
            worse, in_a_row = worse + 1, in_a_row + 1
    return EpochVerdict(best, worse, in_a_row)
