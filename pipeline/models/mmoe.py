"""MMoE (Ma, Zhao, Yi, Chen, Hong and Chi, KDD 2018): experts shared by several labels. E experts of width H, T labels.
The defaults are those of MTReclib, whose MLPs also use batch_norm and dropout 0.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from pipeline.models.mlp import Deep, draw, mlp, side_by_side, whole, width_of
from pipeline.models.shared_bottom import Towers


class MMoE(nn.Module):
    """Experts shared by all labels, mixed by one gate per label."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, num_labels: int = 2,
        hidden: Sequence[int] = (512, 256), tower: Sequence[int] = (128, 64), experts: int = 8, **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__()
        width, init = width_of(num_fields, num_numbers, embedding_dim), deep.get("init", "torch")
        self.experts = Experts(whole("experts", experts), width, hidden, deep)
        self.gates = nn.ModuleList(Gate(width, experts, init) for _ in range(whole("num_labels", num_labels)))
        self.towers = Towers(num_labels, hidden[-1], tower, deep)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B, T] ([B] for a single label) of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0]
        are not used."""
        x_BI = side_by_side(embeddings_BFD, numbers_BX)
        experts_BEH = self.experts(x_BI)
        return self.towers(gate(x_BI, experts_BEH) for gate in self.gates)


class Experts(nn.Module):
    """Experts: MLPs with the same inputs. `forward` returns their outputs [B, E, H]."""

    def __init__(self, num_experts: int, num_inputs: int, hidden: Sequence[int], deep: Deep):
        super().__init__()
        self.experts = nn.ModuleList(mlp(num_inputs, hidden, out=False, **deep) for _ in range(num_experts))

    def forward(self, x_BI: Tensor) -> Tensor:
        return torch.stack([expert(x_BI) for expert in self.experts], 1)


class Gate(nn.Module):
    """Mixture of experts, weighted by a softmax of a linear function of the gate's inputs."""

    def __init__(self, num_inputs: int, num_experts: int, init: str):
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_experts)
        draw(self, init)

    def forward(self, x_BI: Tensor, experts_BEH: Tensor) -> Tensor:
        """Mixture [B, H]."""
        return torch.einsum("be,beh->bh", self.linear(x_BI).softmax(1), experts_BEH)
