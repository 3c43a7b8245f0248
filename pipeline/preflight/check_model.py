"""Before the run: whether the workflow's model does what a model must, on two made-up examples."""

from __future__ import annotations

import torch

from pipeline.training.learner import binary_cross_entropy, build_model, row_layout
from pipeline.workflow import Workflow

NUM_EXAMPLES = 2


def check_model(workflow: Workflow) -> None:
    """ValueError that says what is wrong with model.kind or model.args; the class and what it raises are the user's."""
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
            _try(workflow, model, num_labels)
    except Exception as error:
        raise ValueError(f"model.kind {kind} fails on {NUM_EXAMPLES} examples: {error}") from error


def _try(workflow: Workflow, model: torch.nn.Module, num_labels: int) -> None:
    fields = len(workflow.data.categories)
    row = row_layout(workflow)
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
