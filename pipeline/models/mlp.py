"""The deep part that most CTR models share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def mlp(num_inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Linear and ReLU per hidden layer, then one linear output."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, 1))
