"""Sequences of a batch as tensors for the model, the forward pass of the dense model for a batch, and its loss."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pipeline.device.device import Device, tensor_of
from pipeline.models.losses import Loss, Output, logits_of, loss_of
from pipeline.models.ragged import SequenceValues
from pipeline.records import F32, BatchIndex, Examples
from pipeline.training.spread import Items, Lists
from pipeline.workflow import Data, Workflow

Sequences = dict[str, SequenceValues]
"""Sequences of a batch by name."""
Pass = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Forward pass and loss. Maps numbers [B, X], embeddings [B, F, D], first-order weights [B, F], labels [B, T] and
weights ([B], [B, T] or None) to the detached outputs and the loss; with `data.tasks` the loss of each label [T]."""


class Forward:
    """Forward pass of the dense model. Only `train` uses it. Its buffers are reused for every batch."""

    def __init__(
        self, workflow: Workflow, model: torch.nn.Module, device: Device, where: torch.device, maximum: int,
        full: int = 0,
    ) -> None:  # fmt: skip
        """`maximum`: number of examples in the largest batch. `full`: number of examples in a full training batch."""
        self._model, self._where = model, where
        self._loss: Loss = getattr(model, "loss", loss_of(workflow.data.all_tasks))
        self._precision = getattr(torch, workflow.model.precision)
        tasks = [task.weight for task in workflow.data.all_tasks]
        self._tasks = torch.tensor(tasks, device=where) if workflow.data.tasks else None
        """Weight of each label in the loss; None without `data.tasks`."""
        columns = (len(workflow.data.numbers), len(tasks), len(tasks) if workflow.data.tasks else 1)
        self._columns = [device.empty((maximum, width), np.float32) for width in columns]
        self._tensors = [tensor_of(column) for column in self._columns]
        self._full, self._weighted = full, workflow.data.weight is not None
        self.of_full_batch: Pass = self.run
        """Pass for full training batches. All other batches use `run`."""

    def batch_loss(
        self, examples: Examples, batch: int, embeddings: Tensor, first: Tensor, results_K4: Tensor,
        sequences: Sequences | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Return outputs, loss, and the weight of its examples; with `data.tasks` the loss and weight of each label
        [T]. Also writes the loss and its weight to the first two columns of `results_K4`. `sequences`: sequences of
        the batch, if the workflow has `data.sequences`."""
        begin, end = examples.block.batch_bounds(batch)
        numbers, labels, weights = self._aligned(examples, begin, end)
        is_full = self._model.training and end - begin == self._full
        if sequences is None and is_full:
            output, loss = self.of_full_batch(numbers, embeddings, first, labels, weights)
        else:
            output, loss = self.run(numbers, embeddings, first, labels, weights, sequences)
        results_K4[batch, 0] = loss.detach().sum()
        if weights is not None and weights.ndim == 2:
            results_K4[batch, 1] = end - begin
            return output, loss, weights.sum(0)
        results_K4[batch, 1] = end - begin if weights is None else weights.sum()
        return output, loss, results_K4[batch, 1]

    def run(
        self, numbers: Tensor, embeddings: Tensor, first: Tensor, labels: Tensor, weights: Tensor | None,
        sequences: Sequences | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Run a `Pass`, eagerly."""
        output = self._forward(numbers, embeddings, first, sequences)
        loss = self._loss(output, labels, weights)
        return logits_of(output).detach(), loss if self._tasks is None else loss * self._tasks

    def columns_of_full_batch(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """All-zero numbers [B, X], labels [B, T] and weights ([B] or [B, T]), with the layout of a full batch."""
        numbers, labels, weights = (torch.zeros_like(tensor[: self._full]) for tensor in self._tensors)
        if self._tasks is not None:
            return numbers, labels, weights
        return numbers, labels, weights[:, 0] if self._weighted else None

    def logits(self, numbers_BX: F32, embeddings: Tensor, first: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Return the outputs, [B] or [B, T], of a batch with these numbers."""
        numbers = self._tensors[0][: len(numbers_BX)]
        self._columns[0][: len(numbers_BX)] = numbers_BX
        return logits_of(self._forward(numbers, embeddings, first, sequences))

    def _forward(self, numbers: Tensor, embeddings: Tensor, first: Tensor, sequences: Sequences | None) -> Output:
        others = {} if sequences is None else {"sequences": sequences}
        if self._precision is torch.float32:
            return self._model(numbers, embeddings, first, **others)
        with torch.autocast(self._where.type, self._precision):
            output = self._model(numbers, embeddings, first, **others)
        return tuple(one.float() for one in output) if isinstance(output, tuple) else output.float()

    def _aligned(self, examples: Examples, begin: int, end: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Copy a batch's numbers [B, X], labels [B, T] and weights [B] to buffers aligned to 64 bytes, so that bits do
        not depend on the batch's position in its block. With `data.tasks` weights are [B, T], and a label that is
        missing in an example becomes 0 with weight 0."""
        numbers, labels, weights = (tensor[: end - begin] for tensor in self._tensors)
        numbers_BX, labels_BT, weights_BC = (column[: end - begin] for column in self._columns)
        numbers_BX[:] = examples.numbers_NX[begin:end]
        labels_BT[:] = examples.labels_NT[begin:end]
        if self._tasks is not None:
            has_BT = labels_BT == labels_BT
            weights_BC[:] = has_BT if examples.weights_N is None else has_BT * examples.weights_N[begin:end, None]
            labels_BT[~has_BT] = 0
            return numbers, labels, weights
        if examples.weights_N is None:
            return numbers, labels, None
        weights_BC[:, 0] = examples.weights_N[begin:end]
        return numbers, labels, weights[:, 0]


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
