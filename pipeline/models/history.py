"""Common part of models of sequences: an MLP over the fields, the numbers, and one vector per sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from pipeline.models.mlp import Deep, mlp, side_by_side, whole
from pipeline.models.ragged import Segments, SequenceValues, TimeMajor

Sizes = Mapping[str, Sequence[int]]
"""Number of list columns and number of lists of numbers of each sequence, by name."""


class HistoryModel(nn.Module):
    """MLP over the fields, the numbers, and the outputs of `pools` for each sequence.

    A model is a subclass whose constructor passes a function that makes the module of a sequence from the width E of
    its values (the embeddings of all list columns, concatenated) and the number N of its lists of numbers. The module
    has an attribute `width`, and its `forward` maps a `History` to [B, width]."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, sequences: Sizes,
        pool: Callable[[int, int], Any], hidden: Sequence[int], deep: Deep,
    ):  # fmt: skip
        super().__init__()
        if not sequences:
            raise ValueError(f"{type(self).__name__} reads sequences, but there are none; list them in data.sequences")
        whole("model.embedding_dim", embedding_dim)
        self.names = tuple(sequences)
        pools = [pool(items * embedding_dim, numbers) for items, numbers in sequences.values()]
        self.pools = nn.ModuleList(pools)
        width = num_fields * embedding_dim + num_numbers + sum(module.width for module in pools)
        self.mlp = mlp(width, hidden, **deep)

    def forward(
        self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor, sequences: dict[str, SequenceValues]
    ) -> Tensor:
        """Logits [B] of numbers [B, X], embeddings [B, F, D] and sequences; first-order weights [B, 0] are not used."""
        pooled = [pool(history) for pool, history in zip(self.pools, self.histories(sequences), strict=True)]
        return self.logits(numbers_BX, embeddings_BFD, pooled)

    def histories(self, sequences: dict[str, SequenceValues]) -> list[History]:
        return [History(sequences[name]) for name in self.names]

    def logits(self, numbers_BX: Tensor, embeddings_BFD: Tensor, pooled: list[Tensor]) -> Tensor:
        """Logits [B] of numbers, embeddings, and the sequences' vectors [B, P]."""
        return self.mlp(torch.cat([side_by_side(embeddings_BFD, numbers_BX), *pooled], 1)).squeeze(1)


class History:
    """A sequence with its columns concatenated."""

    def __init__(self, values: SequenceValues) -> None:
        self.items_VE = torch.cat([*values.items.values()], 1)
        """Embeddings of the values; E = D times the number of list columns."""
        self.candidate_BE = torch.cat([*values.candidate.values()], 1)
        numbers = [number_V.unsqueeze(1) for number_V in values.numbers.values()]
        self.numbers_VN = torch.cat(numbers, 1) if numbers else self.items_VE[:, :0]
        self.segments = Segments(values.offsets, self.items_VE.shape[0])

    @cached_property
    def time(self) -> TimeMajor:
        return TimeMajor(self.segments)

    @property
    def inputs_VI(self) -> Tensor:
        """Embeddings and numbers of the values."""
        return torch.cat([self.items_VE, self.numbers_VN], 1)


class MeanPooling(HistoryModel):
    """Mean of an example's values, independent of the candidate: the baseline for attention."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, sequences: Sizes,
        hidden: Sequence[int] = (1024, 512, 256), **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__(num_fields, num_numbers, embedding_dim, sequences, Mean, hidden, deep)


class Mean(nn.Module):
    def __init__(self, width: int, num_numbers: int):
        super().__init__()
        self.width = width + num_numbers

    def forward(self, history: History) -> Tensor:
        return history.segments.mean(history.inputs_VI)
