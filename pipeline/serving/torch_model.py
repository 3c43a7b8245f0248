"""Dense part of a model in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipeline.device.device import RAM
from pipeline.optim.average import fill
from pipeline.records import F32, Array
from pipeline.training.build import build_model
from pipeline.training.dense_state import MODEL, check_values, load_values
from pipeline.training.forward import Forward
from pipeline.training.items import Lists
from pipeline.training.ragged import Ragged
from pipeline.workflow import Workflow


def model_of(workflow: Workflow, saved: Mapping[str, Array]) -> torch.nn.Module:
    """Build the workflow's model with the parameters and buffers of a commit's dense part, averaged if it has averages,
    in evaluation mode. Raises ValueError if they are those of another model."""
    values = {name.removeprefix(MODEL): value for name, value in saved.items() if name.startswith(MODEL)}
    model = model_with(workflow, values)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    with torch.no_grad():
        fill(trained, trained, saved)
    return model


def model_with(workflow: Workflow, values: Mapping[str, Array]) -> torch.nn.Module:
    """Build the workflow's model with these parameters and buffers, in evaluation mode. Raises ValueError if they are
    those of another model."""
    model = _build(workflow)
    load_values(model, values)
    return model.eval()


def check_sizes(workflow: Workflow, values: Mapping[str, Array]) -> None:
    """Raises ValueError if these are the parameters and buffers of another model. Takes no memory for the workflow's:
    its arguments may come from a file and say any sizes. The model must be one of this package."""
    with torch.device("meta"):
        model = _build(workflow)
    check_values(model, values)


def _build(workflow: Workflow) -> torch.nn.Module:
    try:
        return build_model(workflow)
    except Exception as error:  # Of any kind: the arguments are passed to the class as they are.
        raise ValueError(f"it cannot be made with model.args: {type(error).__name__}: {error}") from error


class TorchDense:
    """Forward pass in torch, with the number of threads that the run evaluated with."""

    def __init__(self, workflow: Workflow, model: torch.nn.Module) -> None:
        self._workflow, self._model, self._ragged = workflow, model, Ragged(workflow.data, RAM)
        self._make_room(0)
        self._threads = workflow.schedule.threads

    def _make_room(self, maximum: int) -> None:
        """Take buffers for so many examples. They grow with what comes: a workflow may say any size of a batch."""
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
