"""Logistic regression, and the linear part that it shares with other models."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FirstOrder(nn.Module):
    """w0 + <w, x>: a bias, a weight for each number, and a weight for each key, stored in the key's row."""

    first_order = True
    """Rows have one additional weight, the key's first-order term."""

    def __init__(self, num_numbers: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.number_weights_X = nn.Parameter(torch.zeros(num_numbers))

    def linear(self, numbers_BX: Tensor, first_order_BF: Tensor) -> Tensor:
        """Linear term [B] of numbers [B, X] and first-order weights [B, F]."""
        return self.bias + first_order_BF.sum(1) + numbers_BX @ self.number_weights_X


class LR(FirstOrder):
    """Logistic regression. It does not use embeddings: set model.embedding_dim to 0."""

    def __init__(self, num_fields: int, num_numbers: int, embedding_dim: int):
        super().__init__(num_numbers)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X], embeddings [B, F, D] (unused) and first-order weights [B, F]."""
        return self.linear(numbers_BX, first_order_BF)
