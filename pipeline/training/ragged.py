"""Sequences of a batch as tensors for the model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.device.device import Device, tensor_of
from pipeline.models.sequence import SequenceValues
from pipeline.records import F32, BatchIndex, Examples
from pipeline.training.spread import Items, Lists
from pipeline.workflow import Data

MADE_UP_LENGTH = 200
"""Maximum length of the sequences with which a model is tested before the run."""


class Ragged:
    """Sequences of a workflow. Lists of numbers are copied to reused buffers aligned to 64 bytes, so that bits do not
    depend on the batch's position in its block."""

    def __init__(self, data: Data, device: Device, items: Items | None = None) -> None:
        """`items`: lookup of the values of sequences, for `look_up`."""
        self._sequences, self._device, self._items = data.sequences, device, items
        self._fields = [category.name for category in data.categories]
        self._buffers: dict[str, F32] = {
            name: device.empty(0, np.float32) for sequence in data.sequences for name in sequence.numbers
        }

    def look_up(
        self, weights_PC: F32, index: BatchIndex, examples: Examples, batch: int, embeddings_BFD: Tensor
    ) -> tuple[list[Tensor], dict[str, SequenceValues] | None]:
        """Look up the values of a batch and return the result of `values`, valid until the next call. `weights_PC`:
        weights of the batch's unique keys."""
        lists = self._items.look_up(weights_PC, index, examples, batch) if self._items and examples.lists else None
        return self.values(lists, embeddings_BFD)

    def values(
        self, lists: Lists | None, embeddings_BFD: Tensor
    ) -> tuple[list[Tensor], dict[str, SequenceValues] | None]:
        """Return the embeddings of each item list's values, and the sequences by name. The embeddings get gradients if
        those of the fields do; candidates are taken from the fields. Without lists, returns an empty list and None."""
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


def made_up(data: Data, num_examples: int, embeddings_BFD: Tensor) -> dict[str, SequenceValues]:
    """Sequences whose items are drawn from a normal distribution and whose numbers are 0. Their lengths alternate
    between 0 and `max_length`, at most MADE_UP_LENGTH."""
    fields, dim = [category.name for category in data.categories], embeddings_BFD.shape[2]
    made = {}
    for sequence in data.sequences:
        length_of_one = min(sequence.max_length, MADE_UP_LENGTH)
        offsets = torch.tensor([n // 2 * length_of_one for n in range(num_examples + 1)])
        length = int(offsets[-1])
        made[sequence.name] = SequenceValues(
            {name: torch.randn(length, dim).requires_grad_(embeddings_BFD.requires_grad) for name in sequence.items},
            offsets,
            {name: torch.zeros(length) for name in sequence.numbers},
            {name: embeddings_BFD[:, fields.index(category)] for name, category in sequence.items.items()},
        )
    return made
