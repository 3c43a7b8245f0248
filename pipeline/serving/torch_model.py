"""Dense part of a model in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipeline.device.device import RAM
from pipeline.optim.dense import fill
from pipeline.records import F32, Array
from pipeline.training.build import build_model
from pipeline.training.dense_state import MODEL, check_values, load_values
from pipeline.training.forward import Forward, Ragged
from pipeline.training.spread import Lists
from pipeline.workflow import Workflow


def model_of(workflow: Workflow, saved: Mapping[str, Array]) -> torch.nn.Module:
    """Build the workflow's model, in evaluation mode, with the parameters (averaged, if the commit has averages) and
    buffers of a commit's dense part. Raises ValueError if they belong to another model."""
    values = {name.removeprefix(MODEL): value for name, value in saved.items() if name.startswith(MODEL)}
    model = model_with(workflow, values)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    with torch.no_grad():
        fill(trained, trained, saved)
    return model


def model_with(workflow: Workflow, values: Mapping[str, Array]) -> torch.nn.Module:
    """Build the workflow's model, in evaluation mode, with these parameters and buffers. Raises ValueError if they
    belong to another model."""
    model = _build(workflow)
    load_values(model, values)
    return model.eval()


def check_sizes(workflow: Workflow, values: Mapping[str, Array]) -> None:
    """Raises ValueError if these parameters and buffers belong to another model. Allocates no memory for the workflow's
    model, since its arguments may come from a file and specify any size. The model class must belong to this
    package."""
    with torch.device("meta"):
        model = _build(workflow)
    check_values(model, values)


def _build(workflow: Workflow) -> torch.nn.Module:
    try:
        return build_model(workflow)
    except Exception as error:  # Of any kind: the arguments are passed to the class unchecked.
        raise ValueError(f"it cannot be made with model.args: {type(error).__name__}: {error}") from error


class TorchDense:
    """Forward pass in torch, with the number of threads used in the run's evaluation."""

    def __init__(self, workflow: Workflow, model: torch.nn.Module) -> None:
        self._workflow, self._model, self._ragged = workflow, model, Ragged(workflow.data, RAM)
        self._make_room(0)
        self._threads = workflow.schedule.threads

    def _make_room(self, maximum: int) -> None:
        """Allocate buffers for `maximum` examples. They grow on demand, since a workflow may specify any batch size."""
        self._maximum = maximum
        self._forward = Forward(self._workflow, self._model, RAM, torch.device("cpu"), maximum)

    def __call__(self, numbers_BX: F32, embeddings_BFD: F32, first_BF: F32, lists: Lists | None = None, /) -> F32:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        if len(numbers_BX) > self._maximum:
            self._make_room(len(numbers_BX))
        with torch.inference_mode():
            embeddings, first = torch.from_numpy(embeddings_BFD), torch.from_numpy(first_BF)
            sequences = self._ragged.values(lists, embeddings)[1]
            scores_B: F32 = self._forward.logits(numbers_BX, embeddings, first, sequences).numpy().copy()
        return scores_B
