"""Sequences, as a model gets them: values of all examples one after the other, never padded."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SequenceValues:
    """A sequence of a batch of B examples, whose V items lie one after the other, oldest first, example by example."""

    items: dict[str, Tensor]
    """Embeddings [V, D] of the values of each list column, float32."""
    offsets: Tensor
    """int64 [B + 1]: example b has items offsets[b] to offsets[b + 1] - 1."""
    numbers: dict[str, Tensor]
    """Values [V] of each list of numbers, float32."""
    candidate: dict[str, Tensor]
    """Embeddings [B, D] of the candidate whose table each list column shares, by list column, float32."""
