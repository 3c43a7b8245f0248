"""Shared bottom: several labels from one network (Caruana, Machine Learning 28, 1997). Also the towers of all such
models. T labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from pipeline.models.mlp import Deep, mlp, side_by_side, whole, width_of


class SharedBottom(nn.Module):
    """MLP shared by all labels, with a tower for each label on its last layer."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, num_labels: int = 2,
        hidden: Sequence[int] = (400, 400), tower: Sequence[int] = (64,), **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__()
        self.bottom = mlp(width_of(num_fields, num_numbers, embedding_dim), hidden, out=False, **deep)
        self.towers = Towers(num_labels, hidden[-1], tower, deep)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B, T] ([B] for a single label) of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0]
        are not used."""
        shared_BH = self.bottom(side_by_side(embeddings_BFD, numbers_BX))
        return self.towers([shared_BH] * len(self.towers))


class Towers(nn.ModuleList):
    """One MLP for each label."""

    def __init__(self, num_labels: int, num_inputs: int, tower: Sequence[int], deep: Deep):
        super().__init__(mlp(num_inputs, tower, **deep) for _ in range(whole("num_labels", num_labels)))

    def forward(self, inputs: Iterable[Tensor]) -> Tensor:
        """Logits [B, T] ([B] for a single label) from each tower's inputs [B, H]."""
        logits = [tower(of_BH) for tower, of_BH in zip(self, inputs, strict=True)]
        return torch.cat(logits, 1) if len(logits) > 1 else logits[0].squeeze(1)
