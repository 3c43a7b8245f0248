"""xDeepFM (Lian, Zhou, Zhang, Chen, Xie and Sun, KDD 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, einsum, nn

from pipeline.models.lr import FirstOrder
from pipeline.models.mlp import Deep, draw, mlp, side_by_side, width_of, widths


class xDeepFM(FirstOrder):
    """Sum of first-order terms, a compressed interaction network and an MLP over the same embeddings."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400, 400),
        cin: Sequence[int] = (64,), **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__(num_numbers)
        self.mlp = mlp(width_of(num_fields, num_numbers, embedding_dim), hidden, **deep)
        self.cin = CIN(num_fields, widths("cin", cin, minimum=1))
        self.cin_out = nn.Linear(sum(cin), 1, bias=False)
        for part in (self.cin, self.cin_out):
            draw(part, deep.get("init", "torch"))

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X], embeddings [B, F, D] and first-order weights [B, F]."""
        linear_B = self.linear(numbers_BX, first_order_BF)
        cin_B = self.cin_out(self.cin(embeddings_BFD)).squeeze(1)
        deep_B = self.mlp(side_by_side(embeddings_BFD, numbers_BX)).squeeze(1)
        return linear_B + cin_B + deep_B


class CIN(nn.Module):
    """Compressed interaction network. Each layer has H feature maps: weighted sums, with one weight per pair, of the
    coordinate-wise products of the previous layer's maps with the embeddings. There is no activation, as the paper
    recommends. Each map has a bias and is connected to the output, as in FuxiCTR."""

    def __init__(self, num_fields: int, maps: Sequence[int]):
        super().__init__()
        before = (num_fields, *maps[:-1])
        self.layers = nn.ModuleList(nn.Linear(h * num_fields, to) for h, to in zip(before, maps, strict=True))

    def forward(self, embeddings_BFD: Tensor) -> Tensor:
        """[B, sum of H] maps of all layers, each summed over its D coordinates."""
        maps_BDH = embeddings_BDF = embeddings_BFD.transpose(1, 2)
        pooled = []
        for layer in self.layers:
            maps_BDH = layer(einsum("bdh,bdf->bdhf", maps_BDH, embeddings_BDF).flatten(2))
            pooled.append(maps_BDH.sum(1))
        return torch.cat(pooled, 1)
