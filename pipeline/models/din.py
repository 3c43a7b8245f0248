"""DIN, deep interest network (Zhou, Zhu, Song, Fan, Zhu, Ma, Yan, Jin, Li and Gai, KDD 2018). The defaults are those of
BARS on Amazon reviews, whose MLP also uses batch_norm and dropout 0.1. The paper has no softmax."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from pipeline.models.history import History, HistoryModel, Sizes
from pipeline.models.mlp import Deep, flag, mlp
from pipeline.models.ragged import Segments


class DIN(HistoryModel):
    """Sum of an example's values, each weighted by its relevance to the candidate."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, sequences: Sizes,
        hidden: Sequence[int] = (1024, 512, 256), attention: Sequence[int] = (512, 256), **others: Unpack[UnitAndDeep],
    ):  # fmt: skip
        pool = partial(Attention, unit=take_unit(attention, others))
        super().__init__(num_fields, num_numbers, embedding_dim, sequences, pool, hidden, others)


class UnitAndDeep(Deep, total=False):
    """Arguments of a model's attention unit, except its widths, and of its MLP; part of its workflow's `model.args`."""

    attention_activation: str
    softmax: bool


def take_unit(attention: Sequence[int], others: UnitAndDeep) -> partial[AttentionUnit]:
    """Return a factory that makes an attention unit from the width of a value and its number of numbers. Removes the
    unit's arguments from `others`, which leaves those of the MLP."""
    return partial(
        AttentionUnit, attention=attention, activation=others.pop("attention_activation", "dice"),
        softmax=others.pop("softmax", True), init=others.get("init", "torch"),
    )  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width: int, num_numbers: int, unit: partial[AttentionUnit]):
        super().__init__()
        self.width = width
        self.unit = unit(width, num_numbers)

    def forward(self, history: History) -> Tensor:
        """[B, E]: sum of a(k, q) k over the values k of each example."""
        k_VE, q_BE, segments = history.items_VE, history.candidate_BE, history.segments
        a_V = self.unit(k_VE, q_BE, history.numbers_VN, segments)
        return segments.sum(a_V.unsqueeze(1) * k_VE)


class AttentionUnit(nn.Module):
    """a(k, q): an MLP of [q, k, q - k, q * k] and the value's numbers, with an optional softmax over each example."""

    def __init__(
        self, width: int, num_numbers: int, attention: Sequence[int], activation: str, softmax: bool, init: str
    ):
        super().__init__()
        self.softmax = flag("softmax", softmax)
        self.mlp = mlp(4 * width + num_numbers, attention, activation=activation, init=init)

    def forward(self, k_VE: Tensor, q_BE: Tensor, numbers_VN: Tensor, segments: Segments) -> Tensor:
        """Weights [V]."""
        q_VE = segments.copy(q_BE)
        a_V = self.mlp(torch.cat([q_VE, k_VE, q_VE - k_VE, q_VE * k_VE, numbers_VN], 1)).squeeze(1)
        return segments.softmax(a_V) if self.softmax else a_V
