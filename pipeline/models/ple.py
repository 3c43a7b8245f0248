"""PLE, progressive layered extraction (Tang, Liu, Zhao and Gong, RecSys 2020): levels of experts, some per label and
some shared. T labels. The defaults are those of MTReclib, whose MLPs also use batch_norm and dropout 0.2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from pipeline.models.mlp import Deep, side_by_side, whole, width_of, widths
from pipeline.models.mmoe import Experts, Gate
from pipeline.models.shared_bottom import Towers


class PLE(nn.Module):
    """Each level has experts for each label and shared experts, of one layer each. A label's gate mixes that label's
    experts and the shared ones; the shared gate mixes all."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, num_labels: int = 2,
        hidden: Sequence[int] = (512, 256), tower: Sequence[int] = (128, 64), experts: int = 4,
        shared_experts: int = 4, **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__()
        ends = (width_of(num_fields, num_numbers, embedding_dim), *widths("hidden", hidden, minimum=1))
        sizes = whole("num_labels", num_labels), whole("experts", experts), whole("shared_experts", shared_experts)
        self.levels = nn.ModuleList(
            Extraction(*sizes, ends[n], ends[n + 1], deep, is_last=n == len(hidden) - 1) for n in range(len(hidden))
        )
        self.towers = Towers(num_labels, hidden[-1], tower, deep)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B, T] ([B] for a single label) of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0]
        are not used."""
        inputs = [side_by_side(embeddings_BFD, numbers_BX)] * (len(self.towers) + 1)
        for level in self.levels:
            inputs = level(inputs)
        return self.towers(inputs[: len(self.towers)])


class Extraction(nn.Module):
    """One level of PLE. The last one has no shared gate, since no level follows."""

    def __init__(self, num_labels: int, own: int, shared: int, num_inputs: int, width: int, deep: Deep, is_last: bool):
        super().__init__()
        init, sizes = deep.get("init", "torch"), [own] * num_labels + [shared]
        self.experts = nn.ModuleList(Experts(size, num_inputs, (width,), deep) for size in sizes)
        gated = [own + shared] * num_labels + ([] if is_last else [own * num_labels + shared])
        self.gates = nn.ModuleList(Gate(num_inputs, size, init) for size in gated)

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """[B, H] for each label and, except in the last level, for the shared part, from inputs [B, I] of each."""
        *own, shared_BEH = (of(x_BI) for of, x_BI in zip(self.experts, inputs, strict=False))
        mixed = [*(torch.cat([of_BEH, shared_BEH], 1) for of_BEH in own), torch.cat([*own, shared_BEH], 1)]
        return [gate(x_BI, of_BEH) for gate, x_BI, of_BEH in zip(self.gates, inputs, mixed, strict=False)]
