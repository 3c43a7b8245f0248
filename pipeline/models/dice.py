"""Dice, the activation of DIN (Zhou et al., KDD 2018): a gate at the mean of the values, between two slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

EPS, MOMENTUM = 1e-9, 0.01


class Dice(nn.BatchNorm1d):
    """p x + alpha (1 - p) x, where p is the sigmoid of x minus its mean, divided by its standard deviation.

    In training, mean and variance are over all values of the whole batch. In evaluation they are running statistics,
    which are also used, and not updated, if there are fewer than two values."""

    add_up: Callable[[Tensor], None] | None = None
    """Function that replaces a vector by its sum over all workers that train on the same batch; None for a single
    worker."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPS, momentum=MOMENTUM, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x_VI: Tensor) -> Tensor:
        """Output [V, I] of V values [V, I]."""
        p_VI = torch.sigmoid(self._standardized(x_VI))
        return p_VI * x_VI + self.alpha * (1 - p_VI) * x_VI

    def _standardized(self, x_VI: Tensor) -> Tensor:
        mean_I, variance_I = self.running_mean, self.running_var
        assert mean_I is not None, "its statistics are kept"
        assert variance_I is not None, "its statistics are kept"
        if self.training and self.add_up:
            return self._standardized_by_all(x_VI.to(mean_I.dtype), mean_I, variance_I)
        trains = self.training and len(x_VI) > 1
        return batch_norm(x_VI, mean_I, variance_I, training=trains, momentum=MOMENTUM, eps=EPS)

    def _standardized_by_all(self, x_VI: Tensor, mean_I: Tensor, variance_I: Tensor) -> Tensor:
        """Standardize with the statistics of all workers' values. The running mean, which all workers share, is
        subtracted before summing, so that a large mean does not cost the variance precision."""
        x_VI = x_VI - mean_I
        own = torch.cat([x_VI.new_full((1,), len(x_VI)), x_VI.sum(0), x_VI.square().sum(0)])
        count, sum_I, squares_I = _SumOfAll.apply(own, self.add_up).split([1, x_VI.shape[1], x_VI.shape[1]])
        enough = count > 1
        shift_I = torch.where(enough, sum_I / count.clamp_min(1), 0.0)
        spread_I = (squares_I / count.clamp_min(1) - shift_I.square()).clamp_min(0)
        spread_I = torch.where(enough, spread_I, variance_I)
        with torch.no_grad():
            unbiased_I = torch.where(enough, spread_I * count / (count - 1).clamp_min(1), variance_I)
            mean_I.add_(shift_I, alpha=MOMENTUM)
            variance_I.lerp_(unbiased_I, MOMENTUM)
        return (x_VI - shift_I) * (spread_I + EPS).rsqrt()


class _SumOfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, add_up: Callable[[Tensor], None]) -> Tensor:
        ctx.add_up = add_up
        return summed(own, add_up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # A worker's loss is its share of the batch's loss, so the gradient of a sum is the sum over all workers.
        return summed(gradient, ctx.add_up), None


def summed(own: Tensor, add_up: Callable[[Tensor], None]) -> Tensor:
    total = own.detach().clone(memory_format=torch.contiguous_format)
    add_up(total)
    return total
