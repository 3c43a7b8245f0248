"""Files of a servable's dense part: safetensors and ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from pipeline.records import F32, Array
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.onnx_model import INPUTS, OUTPUT
from pipeline.serving.servable import ONNX_FILE, WEIGHTS_FILE
from pipeline.serving.torch_model import TorchDense, model_of
from pipeline.storage.files import Files, tensors
from pipeline.training.dense_state import model_state

EXAMPLES = 3
"""Examples of the batch that the exporters trace; the number of examples stays free."""
MEASURED_EXAMPLES = 1 << 10


def dense_files(
    opened: OpenedCommit, saved: Mapping[str, Array], sample_NC: F32, out: Path, files: Files
) -> tuple[dict[str, str], dict[str, str], dict[str, float]]:
    """Write the files of the dense part, in float32. Returns their checksums; the first line of the reason for each
    file that its exporter refused to make; and the largest difference of logits from the run's precision, if that is
    another one, by its description. `sample_NC`: weights of some rows, on which the difference is measured."""
    model = model_of(opened.workflow, saved)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    sums = {WEIGHTS_FILE: files.replace(out / WEIGHTS_FILE, tensors(model_state(model), {"class": kind}))}
    measured = difference_of_precisions(opened, model, sample_NC)
    left_out: dict[str, str] = {}
    try:
        with quiet():
            content = onnx_bytes(exported(opened, model))
    except Exception as error:
        left_out[ONNX_FILE] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    else:
        sums[ONNX_FILE] = files.replace(out / ONNX_FILE, [content])
    return sums, left_out, measured


def difference_of_precisions(opened: OpenedCommit, model: torch.nn.Module, sample_NC: F32) -> dict[str, float]:
    """Largest difference of float32 logits from those in the run's precision, over examples of random rows of the
    sample and normally distributed numbers; empty if the run's precision is float32."""
    workflow, layout = opened.workflow, opened.layout
    if workflow.model.precision == "float32" or not len(sample_NC):
        return {}
    rng, fields = np.random.default_rng(0), len(workflow.data.categories)
    size = min(MEASURED_EXAMPLES, workflow.schedule.batch_size)
    rows_BFC = sample_NC[rng.integers(0, len(sample_NC), (size, fields))]
    numbers_BX = rng.standard_normal((size, len(workflow.data.numbers))).astype(np.float32)
    embeddings_BFD, first_BF1 = np.split(rows_BFC, [layout.embedding_dim], axis=2)
    first_BF = first_BF1.reshape(size, fields if layout.first_order else 0)
    arrays = numbers_BX, np.ascontiguousarray(embeddings_BFD), np.ascontiguousarray(first_BF)
    exact = workflow.model_copy(update={"model": workflow.model.model_copy(update={"precision": "float32"})})
    scores = [TorchDense(one, model)(*arrays) for one in (workflow, exact)]
    name = f"largest difference of a logit in float32 from {workflow.model.precision}"
    return {name: float(np.abs(scores[0] - scores[1]).max())}


def exported(opened: OpenedCommit, model: torch.nn.Module) -> torch.export.ExportedProgram:
    """Trace the model with a free number of examples; embeddings are inputs."""
    data, layout = opened.workflow.data, opened.layout
    fields, size = len(data.categories), torch.export.Dim("examples")
    inputs = (
        torch.zeros(EXAMPLES, len(data.numbers)),
        torch.zeros(EXAMPLES, fields, layout.embedding_dim),
        torch.zeros(EXAMPLES, fields if layout.first_order else 0),
    )
    return torch.export.export(model, inputs, dynamic_shapes=({0: size}, {0: size}, {0: size}))


def onnx_bytes(program: torch.export.ExportedProgram) -> bytes:
    made = torch.onnx.export(
        program, dynamo=True, verbose=False, input_names=list(INPUTS), output_names=[OUTPUT], external_data=False
    )
    assert made is not None
    content: bytes = made.model_proto.SerializeToString()
    return content


@contextmanager
def quiet() -> Iterator[None]:
    """Context in which the exporters print nothing."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
