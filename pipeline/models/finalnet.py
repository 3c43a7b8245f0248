"""FinalNet (Zhu, Jia, Cai, Dai, Li, Dong, Tang and Zhang, SIGIR 2023): instead of MLP layers, layers whose halves are
multiplied with each other, in two blocks that teach each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from pipeline.models.losses import Output, binary_cross_entropy
from pipeline.models.mlp import draw, one_of, probability, side_by_side, width_of, widths


class FinalNet(nn.Module):
    """Mean of the logits of two blocks, or the logit of the first if `second` is empty. With `gates`, the first block
    also gets every embedding times a gate, a linear function of the same coordinate of all fields."""

    outputs_are_logits = True
    """All outputs in training are logits, so an initial bias is added to each."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, hidden: Sequence[int] = (400, 400),
        second: Sequence[int] = (400,), gates: bool = False, residual: str = "concat", batch_norm: bool = True,
        dropout: float = 0.0, init: str = "torch",
    ):  # fmt: skip
        super().__init__()
        width = width_of(num_fields, num_numbers, embedding_dim)
        self.gates = gates
        if gates:
            # The authors initialize gates to 1.
            self.gate_FF = nn.Parameter(torch.zeros(num_fields, num_fields))
            self.gate_bias_F = nn.Parameter(torch.ones(num_fields))
        of_gates = num_fields * embedding_dim if gates else 0
        sizes = [(width + of_gates, widths("hidden", hidden, minimum=1)), (width, widths("second", second))]
        self.blocks = nn.ModuleList(
            block(num_inputs, layers, residual, batch_norm, probability("dropout", dropout))
            for num_inputs, layers in sizes if layers
        )  # fmt: skip
        draw(self.blocks, init)

    def forward(
        self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        """Logits [B] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used. In training
        also the logits [B] of each block, if there are two."""
        plain_BI = side_by_side(embeddings_BFD, numbers_BX)
        first_BI = plain_BI
        if self.gates:
            gates_BFD = linear(embeddings_BFD.transpose(1, 2), self.gate_FF, self.gate_bias_F).transpose(1, 2)
            first_BI = torch.cat([plain_BI, (embeddings_BFD * gates_BFD).flatten(1)], 1)
        each = [of(x_BI).squeeze(1) for of, x_BI in zip(self.blocks, (first_BI, plain_BI), strict=False)]
        logits_B = sum(each) / len(each)
        return (logits_B, *each) if self.training and len(each) > 1 else logits_B

    def loss(self, output: Output, labels_BT: Tensor, weights: Tensor | None) -> Tensor:
        """L + the cross-entropy of each block with the joint prediction, held constant, as its label."""
        if isinstance(output, Tensor):
            return binary_cross_entropy(output, labels_BT, weights)
        logits_B, *each = output
        taught_B1 = logits_B.detach().sigmoid().unsqueeze(1)
        loss = binary_cross_entropy(logits_B, labels_BT, weights)
        return loss + sum(binary_cross_entropy(of_block_B, taught_B1, weights) for of_block_B in each)


class FactorizedInteraction(nn.Module):
    """Interaction of the halves a and b of a linear layer: [a, a * b] if `residual` is "concat" (the layer is as wide
    as the output), or a + a * b if it is "sum" (the layer is twice as wide)."""

    def __init__(self, num_inputs: int, width: int, residual: str):
        super().__init__()
        self.joins = one_of("residual", residual, ("concat", "sum")) == "concat"
        if self.joins and width % 2:
            raise ValueError(f"a layer's width is {width}; residual 'concat' splits it into halves: use an even width")
        self.linear = nn.Linear(num_inputs, width if self.joins else 2 * width)

    def forward(self, x_BI: Tensor) -> Tensor:
        """Output [B, O] of inputs [B, I]."""
        a, b = self.linear(x_BI).chunk(2, 1)
        return torch.cat([a, a * b], 1) if self.joins else a + a * b


def block(num_inputs: int, hidden: Sequence[int], residual: str, batch_norm: bool, dropout: float) -> nn.Sequential:
    """Factorized interaction, batch norm and dropout for each layer, then one linear output."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers.append(FactorizedInteraction(num_inputs, width, residual))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width))
        if dropout:
            layers.append(nn.Dropout(dropout))
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, 1))
