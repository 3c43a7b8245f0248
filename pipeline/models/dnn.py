"""An MLP over embeddings, and Wide & Deep (Cheng et al., DLRS 2016), which adds logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from pipeline.models.lr import FirstOrder
from pipeline.models.mlp import Deep, mlp, side_by_side, width_of


class DNN(nn.Module):
    """MLP over the concatenated embeddings and numbers."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400, 400),
        **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__()
        self.mlp = mlp(width_of(num_fields, num_numbers, embedding_dim), hidden, **deep)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used."""
        return self.mlp(side_by_side(embeddings_BFD, numbers_BX)).squeeze(1)


class WideDeep(FirstOrder):
    """Wide part: first-order terms, without hand-crafted crossed features. Deep part: an MLP."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400, 400),
        **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__(num_numbers)
        self.mlp = mlp(width_of(num_fields, num_numbers, embedding_dim), hidden, **deep)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X], embeddings [B, F, D] and first-order weights [B, F]."""
        linear_B = self.linear(numbers_BX, first_order_BF)
        deep_B = self.mlp(side_by_side(embeddings_BFD, numbers_BX)).squeeze(1)
        return linear_B + deep_B
