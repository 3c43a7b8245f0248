"""Factorization machine (Rendle, ICDM 2010)."""

from __future__ import annotations

from torch import Tensor

from pipeline.models.lr import FirstOrder


class FM(FirstOrder):
    """First-order terms, and the inner products of all pairs of embeddings. Numbers have first-order terms only."""

    def __init__(self, num_fields: int, num_numbers: int, embedding_dim: int):
        super().__init__(num_numbers)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X], embeddings [B, F, D] and first-order weights [B, F]."""
        return self.linear(numbers_BX, first_order_BF) + pairs(embeddings_BFD)


def pairs(embeddings_BFD: Tensor) -> Tensor:
    """[B] sum over i < j of <v_i, v_j>, as half of |sum of v|^2 - sum of |v|^2."""
    return (embeddings_BFD.sum(1).square() - embeddings_BFD.square().sum(1)).sum(1) / 2
