"""Before the run: whether the workflow's model does what a model must, on two made-up examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeline.storage.layout import RowLayout
from pipeline.training.build import build_model, has_batch_norm
from pipeline.training.dense_state import dense_bytes
from pipeline.training.forward import binary_cross_entropy
from pipeline.workflow import Workflow

NUM_EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class DenseFacts:
    """Facts of a dense model that need no training."""

    num_bytes: int
    """Bytes of a commit of it: parameters, buffers, and the optimizer's numbers."""
    batch_norm: bool

    def min_last_batch(self, batch_size: int, world: int) -> int:
        """Minimum size of an epoch's last batch; a smaller one is joined to the batch before. Batch norm needs two
        examples per worker. Raises ValueError if no batch has as many."""
        if not self.batch_norm:
            return 1
        if batch_size < 2 * world:
            raise ValueError(
                f"schedule.batch_size is {batch_size}, and batch norm needs two examples of each of {world} workers; "
                "raise it, or take fewer workers"
            )
        return 2 * world


def check_model(workflow: Workflow, row: RowLayout) -> DenseFacts:
    """Return what is known of the workflow's model, whose rows have this layout. Raises ValueError, which says what
    is wrong with model.kind or model.args; the class and what it raises are the user's."""
    kind = getattr(workflow.model.kind, "__name__", workflow.model.kind)
    try:
        model = build_model(workflow)
    except Exception as error:
        raise ValueError(f"model.kind {kind} cannot be made with model.args: {error}") from error
    num_labels = len(workflow.data.labels)
    if num_labels > 1 and not hasattr(model, "loss"):
        raise ValueError(
            f"data.labels names {num_labels} labels, and {kind} has no loss(output, labels, weights); "
            "the default loss is for one label"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            _try(workflow, row, model, num_labels)
    except Exception as error:
        raise ValueError(f"model.kind {kind} fails on {NUM_EXAMPLES} examples: {error}") from error
    return facts_of(workflow, model)


def facts_of(workflow: Workflow, model: torch.nn.Module) -> DenseFacts:
    return DenseFacts(dense_bytes(model, workflow.optimizer.numbers_a_parameter), has_batch_norm(model))


def _try(workflow: Workflow, row: RowLayout, model: torch.nn.Module, num_labels: int) -> None:
    fields = len(workflow.data.categories)
    output = model(
        torch.zeros(NUM_EXAMPLES, len(workflow.data.numbers)),
        torch.zeros(NUM_EXAMPLES, fields, row.embedding_dim),
        torch.zeros(NUM_EXAMPLES, fields if row.first_order else 0),
    )
    wanted = (NUM_EXAMPLES,) if num_labels == 1 else (NUM_EXAMPLES, num_labels)
    if tuple(output.shape) != wanted:
        raise ValueError(
            f"forward gives an output of shape {tuple(output.shape)}, expected {wanted}: one logit a label"
        )
    loss = getattr(model, "loss", binary_cross_entropy)(output, torch.zeros(NUM_EXAMPLES, num_labels), None)
    if loss.shape != ():
        raise ValueError(f"loss gives shape {tuple(loss.shape)}, expected a single number")
