"""Models of sequences in plain torch on padded input, as in most repositories, with a table in memory and SparseAdam.
Nothing here is shared with the pipeline.

A pool computes a vector [B, `out`] from values [B, L, E], candidates [B, E], and a mask of the real values [B, L].
Padding follows an example's values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Dice(nn.Module):
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


def softmax(scores: Tensor, real: Tensor) -> Tensor:
    """Softmax over the real values along the last axis; zeros if there are none."""
    return scores.masked_fill(~real, -1e9).softmax(-1) * real


class Mean(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = width

    def forward(self, k: Tensor, q: Tensor, real: Tensor) -> Tensor:
        return torch.einsum("bl,ble->be", real / real.sum(1, keepdim=True).clamp_min(1), k)


class Unit(nn.Module):
    """Weights [B, L] of values, from a network of the values and the candidate. The network processes all places,
    including padding, which then counts in Dice's statistics, as in FuxiCTR; with `packed`, only real values."""

    def __init__(self, width: int, attention: Sequence[int], dice: bool = True, packed: bool = False) -> None:
        super().__init__()
        self.net, self.packed = network(4 * width, attention, dice), packed

    def forward(self, k: Tensor, q: Tensor, real: Tensor) -> Tensor:
        q_k = q.unsqueeze(1).expand_as(k)
        inputs = torch.cat([q_k, k, q_k - k, q_k * k], 2)
        if self.packed:
            scores = torch.zeros(real.shape).masked_scatter(real, self.net(inputs[real]).squeeze(1))
        else:
            scores = self.net(inputs.flatten(0, 1)).view(real.shape)
        return softmax(scores, real)


class Attention(nn.Module):
    """DIN."""

    def __init__(self, width: int, *unit: Any) -> None:
        super().__init__()
        self.out, self.unit = width, Unit(width, *unit)

    def forward(self, k: Tensor, q: Tensor, real: Tensor) -> Tensor:
        return torch.einsum("bl,ble->be", self.unit(k, q, real), k)


class Evolution(nn.Module):
    """DIEN without its auxiliary loss: a GRU, and a second one whose update gate is multiplied by the attention."""

    def __init__(self, width: int, *unit: Any) -> None:
        super().__init__()
        self.out, self.unit, self.interest = width, Unit(width, *unit), nn.GRU(width, width, batch_first=True)
        self.update, self.reset = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.of_input, self.of_state = nn.Linear(width, width), nn.Linear(width, width)
        for gate in (self.update, self.reset):
            # A gate's matrices for the input and the state, concatenated but drawn separately.
            nn.init.uniform_(gate.weight, -(width**-0.5), width**-0.5)

    def forward(self, k: Tensor, q: Tensor, real: Tensor) -> Tensor:
        x, _ = self.interest(k)
        weights, h = self.unit(x, q, real), torch.zeros_like(q)
        for t in range(k.shape[1]):
            both = torch.cat([x[:, t], h], 1)
            update = weights[:, t, None] * torch.sigmoid(self.update(both))
            reset = torch.sigmoid(self.reset(both))
            # A padded place has weight 0, so that the state passes it unchanged.
            h = (1 - update) * h + update * torch.tanh(self.of_input(x[:, t]) + reset * self.of_state(h))
        return h


class Layer(nn.Module):
    """A transformer layer: self-attention and a network, each added to its input; `first` normalizes the inputs."""

    def __init__(self, width: int, heads: int, first: Callable[[int], nn.Module], act: nn.Module, rate: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(rate)
        self.q, self.k, self.v, self.last = (nn.Linear(width, width) for _ in range(4))
        self.before, self.between = first(width), first(width)
        self.net = nn.Sequential(nn.Linear(width, width), act, nn.Linear(width, width))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """`seen`: [B, L, L] mask of the places to which each place attends."""
        y = self.before(x)
        q, k, v = (one(y).unflatten(2, (self.heads, -1)) for one in (self.q, self.k, self.v))
        weights = softmax(torch.einsum("bqhe,bkhe->bhqk", q, k) / q.shape[3] ** 0.5, seen.unsqueeze(1))
        x = x + self.dropout(self.last(torch.einsum("bhqk,bkhe->bqhe", weights, v).flatten(2)))
        return x + self.dropout(self.net(self.between(x)))


def place_rows(places: int, width: int) -> nn.Embedding:
    found = nn.Embedding(places, width)
    nn.init.normal_(found.weight, std=0.02)
    return found


class WithCandidate(nn.Module):
    """BST: the candidate comes first; order matters only through positions, which count back from it."""

    def __init__(self, width: int, heads: int, layers: int, places: int, place_dim: int) -> None:
        super().__init__()
        self.out, self.rows = width + place_dim, place_rows(places, place_dim)
        self.layers = nn.ModuleList(
            Layer(self.out, heads, lambda _: nn.Identity(), nn.LeakyReLU(), 0.0) for _ in range(layers)
        )

    def forward(self, k: Tensor, q: Tensor, real: Tensor) -> Tensor:
        real = torch.cat([real.new_ones(len(real), 1), real], 1)
        ages = real.sum(1, keepdim=True) - torch.arange(real.shape[1])
        ages = torch.where(torch.arange(real.shape[1]) == 0, 0, ages).clamp(0, self.rows.num_embeddings - 1)
        x = torch.cat([torch.cat([q.unsqueeze(1), k], 1), self.rows(ages)], 2)
        seen = real.unsqueeze(1).expand(-1, real.shape[1], -1)
        for layer in self.layers:
            x = layer(x, seen)
        return x[:, 0]


class Causal(nn.Module):
    """SASRec's encoder; the outputs are weighted by their product with the candidate."""

    def __init__(self, width: int, heads: int, layers: int, places: int, rate: float = 0.2) -> None:
        super().__init__()
        self.out, self.rows = 2 * width, place_rows(places, width)
        self.layers = nn.ModuleList(Layer(width, heads, nn.LayerNorm, nn.ReLU(), rate) for _ in range(layers))
        self.dropout, self.norm = nn.Dropout(rate), nn.LayerNorm(width)

    def forward(self, k: Tensor, q: Tensor, real: Tensor) -> Tensor:
        longest = real.shape[1]
        ages = real.sum(1, keepdim=True) - 1 - torch.arange(longest)
        x = self.dropout(k + self.rows(ages.clamp(0, self.rows.num_embeddings - 1)))
        seen = real.unsqueeze(1) & torch.ones(longest, longest, dtype=torch.bool).tril()
        for layer in self.layers:
            x = layer(x, seen)
        x = self.norm(x)
        u = torch.einsum("bl,ble->be", softmax(torch.einsum("ble,be->bl", x, q) / x.shape[2] ** 0.5, real), x)
        return torch.cat([u, u * q], 1)


class Padded(nn.Module):
    """A network over candidates [B, F] and the output of a pool over histories [B, L, F]. Both have F columns that
    share tables; key 0 is padding."""

    def __init__(
        self, num_keys: Sequence[int], dim: int, hidden: Sequence[int], pool: Callable[[int], Any], std: float = 0.02
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(keys + 1, dim, sparse=True) for keys in num_keys)
        for table in self.tables:
            nn.init.normal_(table.weight, std=std)
        width = dim * len(num_keys)
        self.pool = pool(width)
        self.net = network(width + self.pool.out, hidden, False)

    def embed(self, keys: Tensor) -> Tensor:
        return torch.cat([table(keys[..., f]) for f, table in enumerate(self.tables)], -1)

    def forward(self, candidates_BF: Tensor, histories_BLF: Tensor) -> Tensor:
        q, k, real = self.embed(candidates_BF), self.embed(histories_BLF), histories_BLF[:, :, 0] > 0
        return self.net(torch.cat([q, self.pool(k, q, real)], 1)).squeeze(1)


def pad(values_VF: Tensor, offsets: Tensor, longest: int = 0) -> Tensor:
    """[B, L, F] keys, 0 after the end of an example. L is `longest`, or the length of the longest example."""
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
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self._optimizers:
            optimizer.step()
        return float(loss.detach())
