"""Sequences as inputs of a model: the values of all examples, concatenated without padding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SequenceValues:
    """A sequence of a batch of B examples. Its V items are concatenated example by example, oldest first."""

    items: dict[str, Tensor]
    """Embeddings [V, D] of the values of each list column, float32."""
    offsets: Tensor
    """int64 [B + 1]. Example b has items offsets[b] to offsets[b + 1] - 1."""
    numbers: dict[str, Tensor]
    """Values [V] of each list of numbers, float32."""
    candidate: dict[str, Tensor]
    """Embeddings [B, D] of the candidate, by the list column whose table it shares, float32."""
