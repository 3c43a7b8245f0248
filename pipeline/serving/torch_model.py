"""Dense part of a model in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipeline.device.device import RAM
from pipeline.records import F32, Array
from pipeline.training.build import build_model
from pipeline.training.dense_state import MODEL, load_values
from pipeline.training.forward import Forward
from pipeline.workflow import Workflow


def model_of(workflow: Workflow, saved: Mapping[str, Array]) -> torch.nn.Module:
    """Build the workflow's model with the parameters and buffers of a commit's dense part, in evaluation mode. Raises
    ValueError if they are those of another model."""
    return model_with(
        workflow, {name.removeprefix(MODEL): value for name, value in saved.items() if name.startswith(MODEL)}
    )


def model_with(workflow: Workflow, values: Mapping[str, Array]) -> torch.nn.Module:
    """Build the workflow's model with these parameters and buffers, in evaluation mode. Raises ValueError if they are
    those of another model."""
    model = build_model(workflow)
    load_values(model, values)
    return model.eval()


class TorchDense:
    """Forward pass in torch, with the number of threads that the run evaluated with."""

    def __init__(self, workflow: Workflow, model: torch.nn.Module) -> None:
        maximum = workflow.schedule.batch_size
        self._forward = Forward(workflow, model, RAM, torch.device("cpu"), maximum)
        self._threads = workflow.schedule.threads

    def __call__(self, numbers_BX: F32, embeddings_BFD: F32, first_BF: F32) -> F32:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            embeddings, first = torch.from_numpy(embeddings_BFD), torch.from_numpy(first_BF)
            scores_B: F32 = self._forward.logits(numbers_BX, embeddings, first).numpy().copy()
        return scores_B
