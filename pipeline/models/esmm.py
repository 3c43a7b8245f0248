"""ESMM, the entire space multi-task model (Ma, Zhao, Huang, Wang, Hu, Zhu and Gai, SIGIR 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from pipeline.models.mlp import Deep, side_by_side, width_of
from pipeline.models.shared_bottom import Towers

NEAR_ONE = -1e-7
"""Logarithm of the largest probability whose logit is finite in float32."""


class ESMM(nn.Module):
    """Model of two labels: click, and click with conversion. Two towers over the same embeddings give the probability
    of a click and of a conversion after it. The second label's probability is their product, so all examples train
    both."""

    multiplies_probabilities = True

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (360, 200, 80),
        **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__()
        self.towers = Towers(2, width_of(num_fields, num_numbers, embedding_dim), hidden, deep)

    @staticmethod
    def biases_of_towers(first: float, second: float) -> list[float]:
        """Logits of a click and of a conversion after it, from those of the two labels."""
        after = (1 + math.exp(-first)) / (1 + math.exp(-second))
        return [first, math.log(after / (1 - after))]

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B, 2] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used."""
        given_B2 = self.towers([side_by_side(embeddings_BFD, numbers_BX)] * 2)
        # logit(p q) = log(p q) - log(1 - p q), from logarithms that do not overflow.
        product_B = logsigmoid(given_B2).sum(1).clamp_max(NEAR_ONE)
        both_B = product_B - torch.log(-torch.expm1(product_B))
        return torch.stack([given_B2[:, 0], both_B], 1)
