"""Files of a servable's dense part: safetensors and ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline.records import Array
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.onnx_model import INPUTS, OUTPUT
from pipeline.serving.servable import ONNX_FILE, WEIGHTS_FILE
from pipeline.serving.torch_model import model_of
from pipeline.storage.files import Files, tensors
from pipeline.training.dense_state import model_state
from pipeline.training.widths import own_model

EXAMPLES = 3
"""Examples of the batch that the exporters trace; the number of examples stays free."""


def dense_files(
    opened: OpenedCommit, saved: Mapping[str, Array], out: Path, files: Files
) -> tuple[dict[str, str], dict[str, str]]:
    """Write the files of the dense part, in float32. Returns their checksums, and the first line of the reason for the
    file that its exporter refused to make."""
    model = model_of(opened.workflow, saved)
    own = type(own_model(model))
    kind = f"{own.__module__}.{own.__qualname__}"
    sums = {WEIGHTS_FILE: files.replace(out / WEIGHTS_FILE, tensors(model_state(model), {"class": kind}))}
    left_out: dict[str, str] = {}
    if opened.workflow.data.sequences:
        return sums, {ONNX_FILE: "a model that reads data.sequences is not written in ONNX yet"}
    try:
        with quiet():
            content = onnx_bytes(exported(opened, model))
    except Exception as error:
        left_out[ONNX_FILE] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    else:
        sums[ONNX_FILE] = files.replace(out / ONNX_FILE, [content])
    return sums, left_out


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
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
