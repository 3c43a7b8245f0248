"""DCN-V2 (Wang, Shivanna, Cheng, Jain, Lin, Hong and Chi, WWW 2021): cross layers with full matrices, or with mixtures
of low-rank matrices. I = F * D + X inputs, Q experts of rank R, K cross layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, einsum, nn

from pipeline.models.mlp import Deep, draw, mlp, one_of, side_by_side, whole, width_of


class CrossAndDeep(nn.Module):
    """Cross layers and an MLP. "parallel": both over the same inputs, concatenated before one linear output. "stacked":
    the MLP, with its own output, on top of the cross layers."""

    def __init__(self, cross: nn.Module, width: int, hidden: Sequence[int], structure: str, deep: Deep):
        super().__init__()
        self.cross = cross
        self.parallel = one_of("structure", structure, ("stacked", "parallel")) == "parallel"
        self.mlp = mlp(width, hidden, out=not self.parallel, **deep)
        if self.parallel:
            self.out = nn.Linear(width + hidden[-1], 1)
            draw(self.out, deep.get("init", "torch"))

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used."""
        x0_BI = side_by_side(embeddings_BFD, numbers_BX)
        crossed_BI = self.cross(x0_BI)
        if not self.parallel:
            return self.mlp(crossed_BI).squeeze(1)
        return self.out(torch.cat([crossed_BI, self.mlp(x0_BI)], 1)).squeeze(1)


class DCNv2(CrossAndDeep):
    """DCN-V2 whose cross layers each have a full matrix [I, I]."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400, 400),
        cross_layers: int = 3, structure: str = "parallel", **deep: Unpack[Deep],
    ):  # fmt: skip
        width = width_of(num_fields, num_numbers, embedding_dim)
        super().__init__(FullCross(width, whole("cross_layers", cross_layers)), width, hidden, structure, deep)
        draw(self.cross, deep.get("init", "torch"))


class DCNMix(CrossAndDeep):
    """DCN-V2 whose cross layers each have a mixture of low-rank experts."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400, 400),
        cross_layers: int = 3, experts: int = 4, rank: int = 32, structure: str = "parallel", **deep: Unpack[Deep],
    ):  # fmt: skip
        width = width_of(num_fields, num_numbers, embedding_dim)
        sizes = whole("cross_layers", cross_layers), whole("experts", experts), whole("rank", rank)
        super().__init__(MixedCross(width, *sizes), width, hidden, structure, deep)
        draw(self.cross, deep.get("init", "torch"))


class FullCross(nn.Module):
    """x0 * (W x + b) + x, `num_layers` times."""

    def __init__(self, width: int, num_layers: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, x0_BI: Tensor) -> Tensor:
        """Output [B, I] for inputs [B, I]."""
        x_BI = x0_BI
        for layer in self.layers:
            x_BI = x0_BI * layer(x_BI) + x_BI
        return x_BI


class MixedCross(nn.Module):
    """sum over experts q of G_q(x) x0 * (U_q tanh(C_q tanh(V_q x)) + b) + x, `num_layers` times. The gates G, a softmax
    over the experts, are shared by all layers, as in the paper and in DeepCTR. The matrices U, C and V are always drawn
    as for init "xavier", whatever `init` is."""

    def __init__(self, width: int, num_layers: int, num_experts: int, rank: int):
        super().__init__()
        self.gate = nn.Linear(width, num_experts, bias=False)
        self.v_KQRI = xavier(num_layers, num_experts, rank, width)
        self.c_KQRR = xavier(num_layers, num_experts, rank, rank)
        self.u_KQIR = xavier(num_layers, num_experts, width, rank)
        self.bias_KI = nn.Parameter(torch.zeros(num_layers, width))

    def forward(self, x0_BI: Tensor) -> Tensor:
        """Output [B, I] for inputs [B, I]."""
        x_BI = x0_BI
        for v_QRI, c_QRR, u_QIR, b_I in zip(self.v_KQRI, self.c_KQRR, self.u_KQIR, self.bias_KI, strict=True):
            small_BQR = einsum("qri,bi->bqr", v_QRI, x_BI).tanh()
            small_BQR = einsum("qrs,bqs->bqr", c_QRR, small_BQR).tanh()
            experts_BQI = einsum("qir,bqr->bqi", u_QIR, small_BQR) + b_I
            mixed_BI = einsum("bq,bqi->bi", self.gate(x_BI).softmax(1), experts_BQI)
            x_BI = x0_BI * mixed_BI + x_BI
        return x_BI


def xavier(*shape: int) -> nn.Parameter:
    """Draw matrices over the last two axes from a normal distribution with variance 2 / (inputs + outputs)."""
    return nn.Parameter(torch.randn(shape) * (2 / (shape[-1] + shape[-2])) ** 0.5)
