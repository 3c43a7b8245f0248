"""DeepFM (Guo, Tang, Ye, Li and He, IJCAI 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeline.models.mlp import mlp, side_by_side


class DeepFM(nn.Module):
    """First-order terms, factorization machine and MLP over the same embeddings, added up."""

    first_order = True
    """Rows hold one more weight: the key's first-order term."""

    def __init__(self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400, 400)):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.number_weights_X = nn.Parameter(torch.zeros(num_numbers))
        self.mlp = mlp(num_fields * embedding_dim + num_numbers, hidden)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X], embeddings [B, F, D] and first-order weights [B, F]."""
        linear_B = self.bias + first_order_BF.sum(1) + numbers_BX @ self.number_weights_X
        pairs_B = (embeddings_BFD.sum(1).square() - embeddings_BFD.square().sum(1)).sum(1) / 2
        deep_B = self.mlp(side_by_side(embeddings_BFD, numbers_BX)).squeeze(1)
        return linear_B + pairs_B + deep_B
