"""MaskNet (Wang, She and Zhang, DLP-KDD 2021): layers whose inputs are multiplied by a mask, a function of the
embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Unpack

import torch
from torch import Tensor, nn

from pipeline.models.mlp import ACTIVATIONS, Deep, draw, mlp, one_of, probability, side_by_side, whole, width_of, widths


class MaskNet(nn.Module):
    """Mask blocks in sequence ("serial"), or in parallel with an MLP on top ("parallel"). `hidden`: widths of the
    serial blocks, or of that MLP. Embeddings are normalized, each field separately; numbers are not. `batch_norm`
    applies to the MLP."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400, 400),
        structure: str = "serial", blocks: int = 1, block_dim: int = 64, reduction: float = 1.0, **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__()
        width = width_of(num_fields, num_numbers, embedding_dim)
        self.is_parallel = one_of("structure", structure, ("serial", "parallel")) == "parallel"
        self.norm_scale_FD = nn.Parameter(torch.ones(num_fields, embedding_dim))
        self.norm_bias_FD = nn.Parameter(torch.zeros(num_fields, embedding_dim))
        activation = one_of("activation", deep.get("activation", "relu"), ACTIVATIONS)
        dropout, init = probability("dropout", deep.get("dropout", 0.0)), deep.get("init", "torch")
        if self.is_parallel:
            sizes = [(width, whole("block_dim", block_dim))] * whole("blocks", blocks)
        else:
            ends = (width, *widths("hidden", hidden, minimum=1))
            sizes = list(pairwise(ends))
        self.blocks = nn.ModuleList(MaskBlock(width, *size, reduction, activation, dropout) for size in sizes)
        draw(self.blocks, init)
        joined = block_dim * blocks if self.is_parallel else sizes[-1][1]
        self.out = mlp(joined, hidden if self.is_parallel else (), **deep)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used."""
        asked_BI = side_by_side(embeddings_BFD, numbers_BX)
        normed_BFD = nn.functional.layer_norm(embeddings_BFD, embeddings_BFD.shape[2:])
        x_BI = side_by_side(normed_BFD * self.norm_scale_FD + self.norm_bias_FD, numbers_BX)
        if self.is_parallel:
            return self.out(torch.cat([block(asked_BI, x_BI) for block in self.blocks], 1)).squeeze(1)
        for block in self.blocks:
            x_BI = block(asked_BI, x_BI)
        return self.out(x_BI).squeeze(1)


class MaskBlock(nn.Module):
    """activation(norm(W (mask * x))), with mask = V2 relu(V1 e) for embeddings e. The width of V1 is `reduction` times
    that of the block's inputs."""

    def __init__(
        self, width: int, num_inputs: int, num_outputs: int, reduction: float, activation: str, dropout: float
    ):
        super().__init__()
        inner = whole("reduction times a block's inputs", int(num_inputs * reduction))
        self.mask = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, num_inputs))
        self.layer = nn.Linear(num_inputs, num_outputs, bias=False)
        self.after = nn.Sequential(nn.LayerNorm(num_outputs), ACTIVATIONS[activation](), nn.Dropout(dropout))

    def forward(self, asked_BI: Tensor, x_BJ: Tensor) -> Tensor:
        """Output [B, O] for the embeddings and numbers [B, I] that determine the mask, and inputs [B, J]."""
        return self.after(self.layer(self.mask(asked_BI) * x_BJ))
