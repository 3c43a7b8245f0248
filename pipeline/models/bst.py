"""Transformers over histories: BST, behavior sequence transformer (Chen, Zhao, Li, Huang and Ou, DLP-KDD 2019), and an
encoder as in SASRec (Kang and McAuley, ICDM 2018) with target attention. BST's defaults are those of BARS on Amazon
reviews, whose MLP also uses batch_norm and dropout 0.1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from pipeline.models.history import History, HistoryModel, Sizes
from pipeline.models.mlp import ACTIVATIONS, Deep, draw, flag, one_of, probability, whole
from pipeline.models.ragged import Buckets, Segments, rearrange

POOLINGS = ("target", "mean", "sum")


class BST(HistoryModel):
    """Transformer over an example's values, with the candidate appended. `position_dim` is the width of position
    embeddings, by default that of all embeddings."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, sequences: Sizes,
        hidden: Sequence[int] = (1024, 512, 256), pooling: str = "target", position_dim: int | None = None,
        positions: int = 101, **others: Unpack[BlocksAndDeep],
    ):  # fmt: skip
        layers = whole("layers", others.pop("layers", 1))
        layer_norm = flag("layer_norm", others.pop("layer_norm", False))
        block = partial(
            Block, heads=whole("heads", others.pop("heads", 8)), layer_norm="after" if layer_norm else "",
            dropout=probability("block_dropout", others.pop("block_dropout", 0.0)), activation="leaky_relu",
            init=others.get("init", "torch"),
        )  # fmt: skip
        pool = partial(
            WithTarget, block=block, layers=layers, pooling=one_of("pooling", pooling, POOLINGS),
            position_dim=embedding_dim if position_dim is None else whole("position_dim", position_dim),
            positions=whole("positions", positions),
        )  # fmt: skip
        super().__init__(num_fields, num_numbers, embedding_dim, sequences, pool, hidden, others)


class BlocksAndDeep(Deep, total=False):
    """Arguments of a model's transformer blocks and MLP; part of its workflow's `model.args`."""

    heads: int
    layers: int
    layer_norm: bool
    block_dropout: float


class WithTarget(nn.Module):
    """Encoder of the values and the candidate. Positions count back in time from the candidate, 0; all positions beyond
    `positions` share the last one. Position embeddings are appended to those of the values."""

    def __init__(
        self, width: int, num_numbers: int, block: partial[Block], layers: int, pooling: str, position_dim: int,
        positions: int,
    ):  # fmt: skip
        super().__init__()
        self.width, self.pooling = width + position_dim, pooling
        self.of_numbers = nn.Linear(num_numbers, width, bias=False) if num_numbers else None
        self.positions = nn.Parameter(torch.randn(positions, position_dim) * 0.02)
        self.blocks = nn.ModuleList(block(self.width) for _ in range(layers))

    def forward(self, history: History) -> Tensor:
        """[B, E]: the candidate's output, or the mean or sum of all outputs."""
        items, segments, x_VE = history.segments, with_one_more(history.segments), history.items_VE
        if self.of_numbers:
            x_VE = x_VE + self.of_numbers(history.numbers_VN)
        of_item = torch.arange(items.num_values, device=x_VE.device) + items.example_V
        of_candidate = segments.offsets[1:] - 1
        places = torch.cat([of_item, of_candidate])
        x_VE = rearrange(torch.cat([x_VE, history.candidate_BE]), torch.argsort(places), places)
        age_V = segments.copy(of_candidate) - torch.arange(len(x_VE), device=x_VE.device)
        position = torch.nn.functional.embedding(age_V.clamp_max(len(self.positions) - 1), self.positions)
        x_VE, buckets = torch.cat([x_VE, position], 1), Buckets(segments)
        for block in self.blocks:
            x_VE = block(x_VE, buckets, causal=False)
        if self.pooling == "target":
            nowhere = torch.full_like(segments.example_V, len(of_candidate))
            nowhere[of_candidate] = torch.arange(len(of_candidate), device=x_VE.device)
            return rearrange(x_VE, of_candidate, nowhere)
        return segments.mean(x_VE) if self.pooling == "mean" else segments.sum(x_VE)


def with_one_more(segments: Segments) -> Segments:
    """Segments with one more value each."""
    examples = torch.arange(len(segments.offsets), device=segments.offsets.device)
    return Segments(segments.offsets + examples, segments.num_values + len(segments.lengths))


class Block(nn.Module):
    """Multi-head self-attention within each example, then a two-layer network at each value; both are added to their
    inputs. With `layer_norm` "after" the sums are normalized, as in the BST paper; with "before" the inputs are, as in
    the SASRec code; with "" nothing is."""

    def __init__(self, width: int, heads: int, layer_norm: str, dropout: float, activation: str, init: str):
        super().__init__()
        if width % heads:
            raise ValueError(f"a value has {width} numbers, positions included; expected a multiple of heads, {heads}")
        self.heads, self.place = heads, layer_norm
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 if self.place else 0))
        self.inputs, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, width), ACTIVATIONS[activation](), nn.Linear(width, width))
        self.dropout = nn.Dropout(dropout)
        draw(self, init)

    def forward(self, x_VE: Tensor, buckets: Buckets, causal: bool) -> Tensor:
        """Output [V, E] of values [V, E]."""
        attend = partial(self._attend, buckets=buckets, causal=causal)
        parts: tuple[Callable[[Tensor], Tensor], ...] = (attend, self.network)
        for number, part in enumerate(parts):
            before = self.norms[number](x_VE) if self.place == "before" else x_VE
            x_VE = x_VE + self.dropout(part(before))
            if self.place == "after":
                x_VE = self.norms[number](x_VE)
        return x_VE

    def _attend(self, x_VE: Tensor, buckets: Buckets, causal: bool) -> Tensor:
        q_VE, k_VE, v_VE = self.inputs(x_VE).chunk(3, 1)
        return self.out(buckets.attend(q_VE, k_VE, v_VE, self.heads, causal))


class SASRec(HistoryModel):
    """Causal transformer over an example's values. Returns the sum of its outputs, weighted by a softmax of their dot
    products with the candidate, and the product of that sum and the candidate."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, sequences: Sizes,
        hidden: Sequence[int] = (256, 128), heads: int = 1, layers: int = 2, positions: int = 100,
        block_dropout: float = 0.2, **deep: Unpack[Deep],
    ):  # fmt: skip
        block = partial(
            Block, heads=whole("heads", heads), layer_norm="before",
            dropout=probability("block_dropout", block_dropout), activation="relu", init=deep.get("init", "torch"),
        )  # fmt: skip
        pool = partial(Encoder, block=block, layers=whole("layers", layers), positions=whole("positions", positions))
        super().__init__(num_fields, num_numbers, embedding_dim, sequences, pool, hidden, deep)


class Encoder(nn.Module):
    """Encoder of the values. Positions count back in time from the latest value, 0; all positions beyond `positions`
    share the last one. Position embeddings are added to those of the values."""

    def __init__(self, width: int, num_numbers: int, block: partial[Block], layers: int, positions: int):
        super().__init__()
        self.width, self.dropout = 2 * width, block.keywords["dropout"]
        self.of_numbers = nn.Linear(num_numbers, width, bias=False) if num_numbers else None
        self.positions = nn.Parameter(torch.randn(positions, width) * 0.02)
        self.blocks = nn.ModuleList(block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, history: History) -> Tensor:
        """[B, 2 E]: u = sum of softmax(q x / sqrt(E)) x over the encoded values x of each example, and q u."""
        segments, q_BE, x_VE = history.segments, history.candidate_BE, history.items_VE
        if self.of_numbers:
            x_VE = x_VE + self.of_numbers(history.numbers_VN)
        age_V = segments.copy(segments.lengths) - 1 - segments.position_V()
        x_VE = x_VE + torch.nn.functional.embedding(age_V.clamp_max(len(self.positions) - 1), self.positions)
        x_VE, buckets = torch.nn.functional.dropout(x_VE, self.dropout, self.training), Buckets(segments)
        for block in self.blocks:
            x_VE = block(x_VE, buckets, causal=True)
        x_VE = self.norm(x_VE)
        a_V = segments.softmax((segments.copy(q_BE) * x_VE).sum(1) / x_VE.shape[1] ** 0.5)
        u_BE = segments.sum(a_V.unsqueeze(1) * x_VE)
        return torch.cat([u_BE, u_BE * q_BE], 1)
