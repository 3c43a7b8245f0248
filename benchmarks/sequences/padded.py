"""Plain torch on padded input: DIN and mean pooling as most repositories have them, with a table in memory and
SparseAdam. Nothing here is shared with the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Dice(nn.Module):
    """Statistics are over all places, also those that are padded, as in FuxiCTR, unless a mask is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=1e-9, momentum=0.01, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.norm(x))
        return gate * x + self.alpha * (1 - gate) * x


def network(width: int, hidden: Sequence[int], dice: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for after in hidden:
        layers += [nn.Linear(width, after), Dice(after) if dice else nn.ReLU()]
        width = after
    return nn.Sequential(*layers, nn.Linear(width, 1))


class Padded(nn.Module):
    """DIN, or the mean of the values if `attention` is empty, over candidates [B, F] and histories [B, L, F] of F
    columns, which share tables; key 0 is padding."""

    def __init__(
        self, num_keys: Sequence[int], dim: int, hidden: Sequence[int], attention: Sequence[int], softmax: bool = True,
        dice: bool = True, std: float = 0.02,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(keys + 1, dim, sparse=True) for keys in num_keys)
        for table in self.tables:
            nn.init.normal_(table.weight, std=std)
        width = dim * len(num_keys)
        self.attention = network(4 * width, attention, dice) if attention else None
        self.softmax, self.net = softmax, network(2 * width, hidden, False)

    def embed(self, keys: Tensor) -> Tensor:
        return torch.cat([table(keys[..., f]) for f, table in enumerate(self.tables)], -1)

    def forward(self, candidates_BF: Tensor, histories_BLF: Tensor) -> Tensor:
        q, k, real = self.embed(candidates_BF), self.embed(histories_BLF), histories_BLF[:, :, 0] > 0
        if self.attention is None:
            weights = real / real.sum(1, keepdim=True).clamp_min(1)
        else:
            q_k = q.unsqueeze(1).expand_as(k)
            inputs = torch.cat([q_k, k, q_k - k, q_k * k], 2)
            if self.softmax:
                scores = self.attention(inputs.flatten(0, 1)).view(real.shape).masked_fill(~real, -1e9)
                weights = scores.softmax(1) * real
            else:
                weights = self.attention(inputs.flatten(0, 1)).view(real.shape) * real
        pooled = torch.einsum("bl,ble->be", weights, k)
        return self.net(torch.cat([q, pooled], 1)).squeeze(1)


def pad(values_VF: Tensor, offsets: Tensor, longest: int = 0) -> Tensor:
    """[B, L, F] keys, 0 after the end of an example; L is `longest`, or the length of the longest example."""
    lengths = offsets.diff()
    place = torch.arange(longest or max(1, int(lengths.max())))
    real = place < lengths.unsqueeze(1)
    at = torch.where(real, offsets[:-1].unsqueeze(1) + place, 0)
    return values_VF[at] * real.unsqueeze(2)


class Trainer:
    """Adam for the network, SparseAdam for the tables."""

    def __init__(self, model: nn.Module, tables: nn.ModuleList, lr: float = 1e-3) -> None:
        of_tables = {id(parameter) for parameter in tables.parameters()}
        dense = [parameter for parameter in model.parameters() if id(parameter) not in of_tables]
        self._optimizers = [torch.optim.Adam(dense, lr), torch.optim.SparseAdam(list(tables.parameters()), lr)]

    def step(self, logits: Tensor, labels: Tensor) -> float:
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self._optimizers:
            optimizer.step()
        return float(loss.detach())
