"""Files of a servable's dense part: safetensors and ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.models.losses import Output
from pipeline.models.sequence import SequenceValues
from pipeline.own_code.code import plain_name
from pipeline.records import Array
from pipeline.serving.caught_up import RowReader
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.compared import differences
from pipeline.serving.onnx_model import INPUTS, OUTPUT, inputs_of_sequence
from pipeline.serving.servable import ONNX_FILE, WEIGHTS_FILE
from pipeline.serving.torch_model import model_of
from pipeline.storage.files import Files, tensors
from pipeline.training.dense_state import model_state
from pipeline.training.widths import own_model
from pipeline.workflow import Data

EXAMPLES = 3
"""Number of examples in the batch that the exporters trace; the exported batch size is dynamic."""


def dense_files(
    opened: OpenedCommit, saved: Mapping[str, Array], out: Path, files: Files, rows: RowReader
) -> tuple[dict[str, str], dict[str, str]]:
    """Write the files of the dense part, in float32. Returns the checksum of each file, and for a file that the
    exporter could not make, or that does not answer as torch does, the first line of the reason. `rows`: those with
    which the answers are compared."""
    model = model_of(opened.workflow, saved)
    own = type(own_model(model))
    kind = f"{plain_name(own.__module__)}.{own.__qualname__}"
    sums = {WEIGHTS_FILE: files.replace(out / WEIGHTS_FILE, tensors(model_state(model), {"class": kind}))}
    left_out: dict[str, str] = {}
    try:
        with quiet():
            names = [name for one in opened.workflow.data.sequences for name in inputs_of_sequence(one)]
            content = onnx_bytes(exported(opened, model), names)
            if said := differences(opened, model, content, rows):
                raise ValueError(f"ONNX Runtime does not answer as torch does: logits differ by {said}")
    except Exception as error:
        left_out[ONNX_FILE] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    else:
        sums[ONNX_FILE] = files.replace(out / ONNX_FILE, [content])
    return sums, left_out


def exported(opened: OpenedCommit, model: torch.nn.Module) -> torch.export.ExportedProgram:
    """Trace the model with embeddings as inputs. The numbers of examples, and of values of each sequence, are
    dynamic."""
    data, layout = opened.workflow.data, opened.layout
    fields, size = len(data.categories), torch.export.Dim("examples")
    inputs: tuple[Any, ...] = (
        torch.zeros(EXAMPLES, len(data.numbers)),
        torch.zeros(EXAMPLES, fields, layout.embedding_dim),
        torch.zeros(EXAMPLES, fields if layout.first_order else 0),
    )
    shapes: tuple[Any, ...] = ({0: size}, {0: size}, {0: size})
    if not data.sequences:
        return torch.export.export(model, inputs, dynamic_shapes=shapes)
    flat, shapes_of_flat = [], []
    for number, sequence in enumerate(data.sequences):
        # Sizes that happen to be equal would be treated as the same dimension.
        num_values, values = 2 * EXAMPLES + 1 + number, {0: torch.export.Dim(f"values_{number}")}
        flat.append(torch.tensor([*range(EXAMPLES), num_values]))
        flat += [torch.zeros(num_values, layout.embedding_dim) for _ in sequence.items]
        flat += [torch.zeros(num_values) for _ in sequence.numbers]
        shapes_of_flat += [{0: size + 1}, *[values] * len(sequence.columns)]
    return torch.export.export(OfFlat(model, data), (*inputs, flat), dynamic_shapes=(*shapes, shapes_of_flat))


class OfFlat(nn.Module):
    """Wrapper of a model that takes sequences as one list of tensors, in the order of `inputs_of_sequence`."""

    def __init__(self, model: nn.Module, data: Data) -> None:
        super().__init__()
        self.model, self._sequences = model, data.sequences
        self._fields = [category.name for category in data.categories]

    def forward(self, numbers: Tensor, embeddings: Tensor, first_order: Tensor, flat: list[Tensor]) -> Output:
        left, values = iter(flat), {}
        for sequence in self._sequences:
            offsets = next(left)
            items, of_numbers = ({name: next(left) for name in names} for names in (sequence.items, sequence.numbers))
            candidates = {n: embeddings[:, self._fields.index(field)] for n, field in sequence.items.items()}
            values[sequence.name] = SequenceValues(items, offsets, of_numbers, candidates)
        output: Output = self.model(numbers, embeddings, first_order, sequences=values)
        return output


def onnx_bytes(program: torch.export.ExportedProgram, of_sequences: Sequence[str] = ()) -> bytes:
    made = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=[*INPUTS, *of_sequences],
        output_names=[OUTPUT],
        external_data=False,
    )
    assert made is not None
    content: bytes = made.model_proto.SerializeToString()
    return content


@contextmanager
def quiet() -> Iterator[None]:
    """Context that suppresses the output of the exporters."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
