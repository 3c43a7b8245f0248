"""FCN, first published as DCNv3 (Li, Zhang, Zhang, Li, Sang and Zhu, arXiv 2407.13349, 2024): an exponential and a
linear cross network, each with a separate logit. H heads, K layers, I = F * D / H + X inputs per head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.models.losses import Output, binary_cross_entropy
from pipeline.models.mlp import draw, probability, whole


class FCN(nn.Module):
    """Mean of the logits of both cross networks. Each head gets different coordinates of every embedding; the heads
    share the layers, and their logits are averaged. The authors have only categorical columns; here every head also
    gets all numbers."""

    outputs_are_logits = True
    """All outputs in training are logits, so an initial bias is added to each."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, exponential_layers: int = 4,
        linear_layers: int = 4, exponential_dropout: float = 0.1, linear_dropout: float = 0.3, heads: int = 1,
        init: str = "torch",
    ):  # fmt: skip
        super().__init__()
        if embedding_dim == 0 or embedding_dim % whole("heads", heads):
            raise ValueError(f"model.embedding_dim is {embedding_dim}; expected a multiple of heads, which is {heads}")
        self.heads = heads
        width = num_fields * embedding_dim // heads + num_numbers
        self.exponential = MaskedCross(
            width, whole("exponential_layers", exponential_layers),
            probability("exponential_dropout", exponential_dropout), is_exponential=True,
        )  # fmt: skip
        self.linear = MaskedCross(
            width, whole("linear_layers", linear_layers), probability("linear_dropout", linear_dropout)
        )
        draw(self, init)

    def forward(
        self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        """Logits [B] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used. In training
        also the logits [B] of the exponential and of the linear network."""
        heads_BHFE = embeddings_BFD.unflatten(2, (self.heads, -1)).transpose(1, 2)
        halves = (half.flatten(2) for half in heads_BHFE.tensor_split(2, 3))
        x_BHI = torch.cat([*halves, numbers_BX.unsqueeze(1).expand(-1, self.heads, -1)], 2)
        exponential_B, linear_B = self.exponential(x_BHI), self.linear(x_BHI)
        logits_B = (exponential_B + linear_B) / 2
        return (logits_B, exponential_B, linear_B) if self.training else logits_B

    def loss(self, output: Output, labels_BT: Tensor, weights: Tensor | None) -> Tensor:
        """Tri-BCE: L + max(0, L_e - L) L_e + max(0, L_l - L) L_l, where L_e and L_l are the losses of the exponential
        and of the linear network alone. As in the authors' code, gradients also flow through the factors. With several
        workers, each computes the factors from its part of a batch."""
        if isinstance(output, Tensor):
            return binary_cross_entropy(output, labels_BT, weights)
        whole_loss, *parts = (binary_cross_entropy(logits_B, labels_BT, weights) for logits_B in output)
        return whole_loss + sum((part - whole_loss).relu() * part for part in parts)


class MaskedCross(nn.Module):
    """x' = y * ([c, c * relu(norm(c))] + b) + x with c = W x of half the width, `num_layers` times, and a linear
    output. y is x in an exponential network, so that the order doubles with each layer, and the network's input in a
    linear one."""

    def __init__(self, width: int, num_layers: int, dropout: float, is_exponential: bool = False):
        super().__init__()
        self.is_exponential = is_exponential
        half = (width + 1) // 2
        self.layers = nn.ModuleList(nn.Linear(width, half, bias=False) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(half) for _ in range(num_layers))
        self.bias_KI = nn.Parameter(torch.rand(num_layers, width))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, 1)

    def forward(self, x0_BHI: Tensor) -> Tensor:
        """Logits [B], the mean over the heads, of inputs [B, H, I]."""
        x_BHI = x0_BHI
        for layer, norm, bias_I in zip(self.layers, self.norms, self.bias_KI, strict=True):
            c = layer(x_BHI)
            crossed = torch.cat([c, c * norm(c).relu()], 2)[:, :, : x_BHI.shape[2]]
            x_BHI = self.dropout((x_BHI if self.is_exponential else x0_BHI) * (crossed + bias_I) + x_BHI)
        return self.out(x_BHI).squeeze(2).mean(1)
