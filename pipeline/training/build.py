"""Construction of a workflow's dense model, and the layout of its rows."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pipeline.models.losses import Output, logits_of
from pipeline.records import FieldLayout
from pipeline.storage.layout import RowLayout, formats_of_rows
from pipeline.training.widths import Projected, own_model, widths_of
from pipeline.workflow import Workflow


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
