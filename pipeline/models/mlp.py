"""The deep part that most CTR models share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mlp(num_inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Linear and ReLU per hidden layer, then one linear output."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, 1))


def side_by_side(embeddings_BFD: Tensor, numbers_BX: Tensor) -> Tensor:
    """[B, F * D + X] the MLP's inputs; without numbers a view, not a copy."""
    flat_B = embeddings_BFD.flatten(1)
    return torch.cat([flat_B, numbers_BX], 1) if numbers_BX.shape[1] else flat_B
