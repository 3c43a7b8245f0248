"""Sequences of a batch as tensors for the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pipeline.device.device import Device
from pipeline.device.tensors import tensor_of
from pipeline.models.sequence import SequenceValues
from pipeline.records import F32
from pipeline.training.items import Lists
from pipeline.workflow import Data


class Ragged:
    """The sequences of a workflow. Lists of numbers are copied to buffers that are aligned to 64 bytes and reused, so
    that bits do not depend on the batch's position in its block."""

    def __init__(self, data: Data, device: Device) -> None:
        self._sequences, self._device = data.sequences, device
        self._fields = [category.name for category in data.categories]
        self._buffers: dict[str, F32] = {
            name: device.empty(0, np.float32) for sequence in data.sequences for name in sequence.numbers
        }

    def values(
        self, lists: Lists | None, embeddings_BFD: Tensor
    ) -> tuple[list[Tensor], dict[str, SequenceValues] | None]:
        """Return the embeddings of each item list's values, which get gradients if those of the fields do, and the
        sequences by name, whose candidates are taken from the fields. Without lists, an empty list and None."""
        if lists is None:
            return [], None
        items = [tensor_of(item_VD).requires_grad_(embeddings_BFD.requires_grad) for item_VD in lists.items]
        values, item, number = {}, 0, 0
        for sequence in self._sequences:
            of_items = {name: items[item + n] for n, name in enumerate(sequence.items)}
            numbers = {name: self._aligned(name, lists.numbers[number + n]) for n, name in enumerate(sequence.numbers)}
            offsets = tensor_of(lists.starts_LB[item]).to(torch.int64) - lists.firsts[item]
            candidate = {
                name: embeddings_BFD[:, self._fields.index(category)] for name, category in sequence.items.items()
            }
            values[sequence.name] = SequenceValues(of_items, offsets, numbers, candidate)
            item, number = item + len(sequence.items), number + len(sequence.numbers)
        return items, values

    def _aligned(self, name: str, numbers_V: F32) -> Tensor:
        if len(self._buffers[name]) < len(numbers_V):
            self._buffers[name] = self._device.empty(len(numbers_V) + len(numbers_V) // 4, np.float32)
        out_V = self._buffers[name][: len(numbers_V)]
        out_V[:] = numbers_V
        return tensor_of(out_V)


def made_up(data: Data, lengths: Sequence[int], embeddings_BFD: Tensor) -> dict[str, SequenceValues]:
    """Sequences of examples with these lengths: standard normal items, and numbers that are 0."""
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    fields, dim = [category.name for category in data.categories], embeddings_BFD.shape[2]
    return {
        sequence.name: SequenceValues(
            {name: torch.randn(sum(lengths), dim).requires_grad_(embeddings_BFD.requires_grad) for name in sequence.items},
            offsets,
            {name: torch.zeros(sum(lengths)) for name in sequence.numbers},
            {name: embeddings_BFD[:, fields.index(category)] for name, category in sequence.items.items()},
        )
        for sequence in data.sequences
    }
