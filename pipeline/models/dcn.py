"""Deep & Cross Network (Wang, Fu, Fu and Wang, ADKDD 2017). I = F * D + X inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from pipeline.models.mlp import Deep, draw, mlp, side_by_side, whole, width_of


class DCN(nn.Module):
    """Cross layers and an MLP over the same inputs, concatenated before one linear output."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400, 400),
        cross_layers: int = 3, **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__()
        width = width_of(num_fields, num_numbers, embedding_dim)
        self.mlp = mlp(width, hidden, out=False, **deep)
        self.cross = nn.ModuleList(Cross(width) for _ in range(whole("cross_layers", cross_layers)))
        self.out = nn.Linear(width + hidden[-1], 1)
        for part in (self.cross, self.out):
            draw(part, deep.get("init", "torch"))

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used."""
        x_BI = x0_BI = side_by_side(embeddings_BFD, numbers_BX)
        for layer in self.cross:
            x_BI = layer(x0_BI, x_BI)
        return self.out(torch.cat([x_BI, self.mlp(x0_BI)], 1)).squeeze(1)


class Cross(nn.Module):
    """x0 <w, x> + b + x: raises the degree of interaction of x by one."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Linear(width, 1, bias=False)
        self.bias_I = nn.Parameter(torch.zeros(width))

    def forward(self, x0_BI: Tensor, x_BI: Tensor) -> Tensor:
        """Output [B, I] for the inputs x0 [B, I] and the previous layer's output x [B, I]."""
        return x0_BI * self.weight(x_BI) + self.bias_I + x_BI
