"""Construction of a workflow's dense model, and the layout of its rows."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipeline.device.device import Device
from pipeline.models.losses import Output, logits_of
from pipeline.records import I32, FieldLayout
from pipeline.storage.layout import RowLayout, formats_of_rows
from pipeline.workflow import Workflow


def widths_of(workflow: Workflow) -> tuple[int, ...] | None:
    """Number of weights that each categorical field uses; None if all use D."""
    dim = workflow.model.embedding_dim
    widths = tuple(category.width or dim for category in workflow.data.categories)
    return widths if min(widths) < dim else None


def widths_on(device: Device, workflow: Workflow) -> I32 | None:
    """The same as an array [F] on the device."""
    widths = widths_of(workflow)
    return None if widths is None else device.to_device(np.array(widths, np.int32))


class Projected(nn.Module):
    """A model whose narrow fields are first projected to D weights. Fields of a table share its projection, so that a
    value has the same embedding wherever it occurs."""

    def __init__(self, model: nn.Module, tables: Sequence[str], widths: Sequence[int], dim: int) -> None:
        """`tables`: name of each field's table. The entries of a projection are drawn from a normal distribution with
        variance 1/d, so that projected weights initially have the standard deviation of the row's weights."""
        super().__init__()
        self.model = model
        width_of = {table: width for table, width in zip(tables, widths, strict=True) if width < dim}
        self._widths = list(width_of.values())
        self.projections = nn.ParameterList(torch.empty(d, dim).normal_(0, d**-0.5) for d in self._widths)
        numbers = {table: number for number, table in enumerate(width_of)}
        self._number_of_field = [numbers.get(table) for table in tables]

    @property
    def loss(self) -> Any:
        """Loss of the wrapped model. The attribute is missing if that model has none."""
        return self.model.loss

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> object:
        projected = [
            embedding_BD if number is None else embedding_BD[:, : self._widths[number]] @ self.projections[number]
            for embedding_BD, number in zip(embeddings_BFD.unbind(1), self._number_of_field, strict=True)
        ]
        return self.model(numbers_BX, torch.stack(projected, 1), first_order_BF)


def own_model(model: nn.Module) -> nn.Module:
    """The user's model, without the projections that wrap it."""
    return model.model if isinstance(model, Projected) else model


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a model that follow from the data and the workflow."""

    layout: FieldLayout
    row: RowLayout
    largest_batch: int
    """Maximum number of examples in a batch, over all workers."""
    steps_of_epoch: int = 1


def build_model(workflow: Workflow) -> torch.nn.Module:
    """Build the workflow's model. Its initial weights depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(workflow.seed)
        model: torch.nn.Module = workflow.model.kind(
            num_fields=len(workflow.data.categories),
            num_numbers=len(workflow.data.numbers),
            embedding_dim=workflow.model.embedding_dim,
            **sequence_sizes(workflow),
            **workflow.model.args,
        )
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"it returns a {type(model).__name__}, not a torch.nn.Module")
        if widths := widths_of(workflow):
            tables = [category.table_name for category in workflow.data.categories]
            model = Projected(model, tables, widths, workflow.model.embedding_dim)
    if biases := initial_biases(workflow):
        own: Any = own_model(model)
        if getattr(own, "multiplies_probabilities", False):
            own.towers.register_forward_hook(InitialBias(own.biases_of_towers(*biases)))
        else:
            model.register_forward_hook(InitialBias(biases))
    return model


def sequence_sizes(workflow: Workflow) -> dict[str, dict[str, tuple[int, int]]]:
    """Argument `sequences`, for model classes that have it: for each sequence, by name, its number of list columns and
    its number of lists of numbers."""
    try:
        parameters = inspect.signature(workflow.model.kind).parameters
    except ValueError:
        return {}  # Some built-in classes have no signature.
    if "sequences" not in parameters:
        return {}
    sequences = workflow.data.sequences
    return {"sequences": {sequence.name: (len(sequence.items), len(sequence.numbers)) for sequence in sequences}}


def initial_biases(workflow: Workflow) -> list[float]:
    """Constant that is added to the logits of each label; empty if all are 0."""
    given = workflow.model.initial_bias
    biases = [given.get(label, 0.0) if isinstance(given, dict) else given for label in workflow.data.labels]
    return biases if any(biases) else []


class InitialBias:
    """Forward hook of a model that adds a constant to its logits. It has no tensor, so the bias works on every device,
    is in no commit, and is part of any trace of the model."""

    def __init__(self, biases: Sequence[float]) -> None:
        self._biases = biases

    def __call__(self, model: torch.nn.Module, inputs: object, output: Output) -> Output:
        logits = logits_of(output).float()
        if logits.ndim == 1:
            logits = logits + self._biases[0]
        else:
            columns = zip(logits.unbind(1), self._biases, strict=True)
            logits = torch.stack([column + bias for column, bias in columns], 1)
        if not isinstance(output, tuple):
            return logits
        others = output[1:]
        if getattr(own_model(model), "outputs_are_logits", False):
            others = tuple(other.float() + self._biases[0] for other in others)
        return (logits, *others)


def row_layout(workflow: Workflow) -> RowLayout:
    """Layout of the model's rows. A model class with `first_order = True` has one more weight in every row."""
    first_order = bool(getattr(workflow.model.kind, "first_order", False))
    rows = workflow.optimizer.rows
    return RowLayout(workflow.model.embedding_dim, first_order, rows.kind, formats_of_rows(rows))


def has_batch_norm(model: torch.nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())
