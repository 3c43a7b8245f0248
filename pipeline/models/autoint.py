"""AutoInt (Song, Shi, Xiao, Duan, Xu, Zhang and Tang, CIKM 2019). H heads of width A = attention_dim."""

from __future__ import annotations

import torch
from torch import Tensor, einsum, nn

from pipeline.models.mlp import draw, whole


class AutoInt(nn.Module):
    """Layers of multi-head self-attention over the fields, followed by one linear output. A number counts as a field:
    its learned embedding times its value."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, attention_layers: int = 3, heads: int = 2,
        attention_dim: int = 32, init: str = "torch",
    ):  # fmt: skip
        super().__init__()
        whole("model.embedding_dim", embedding_dim)
        width = whole("heads", heads) * whole("attention_dim", attention_dim)
        before = (embedding_dim, *[width] * (whole("attention_layers", attention_layers) - 1))
        self.number_embeddings_XD = nn.Parameter(torch.randn(num_numbers, embedding_dim) * embedding_dim**-0.5)
        self.layers = nn.Sequential(*(SelfAttention(num_inputs, heads, attention_dim) for num_inputs in before))
        self.out = nn.Linear((num_fields + num_numbers) * width, 1)
        draw(self, init)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used."""
        fields_BFD = torch.cat([embeddings_BFD, numbers_BX[:, :, None] * self.number_embeddings_XD], 1)
        return self.out(self.layers(fields_BFD).flatten(1)).squeeze(1)


class SelfAttention(nn.Module):
    """relu(concatenated heads + W_res e), where a head is softmax(<W_query e_f, W_key e_g>) W_value e, not scaled by
    the width, as in the paper."""

    def __init__(self, num_inputs: int, heads: int, attention_dim: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.residual = (
            nn.Linear(num_inputs, heads * attention_dim, bias=False) for _ in range(4)
        )

    def forward(self, fields_BFD: Tensor) -> Tensor:
        """Fields [B, F, H * A] of fields [B, F, D]; D is the width of the layer's inputs."""
        query_BFHA, key_BGHA, value_BGHA = (
            project(fields_BFD).unflatten(2, (self.heads, -1)) for project in (self.query, self.key, self.value)
        )
        attention_BHFG = einsum("bfha,bgha->bhfg", query_BFHA, key_BGHA).softmax(3)
        seen_BFHA = einsum("bhfg,bgha->bfha", attention_BHFG, value_BGHA)
        return torch.relu(seen_BFHA.flatten(2) + self.residual(fields_BFD))
