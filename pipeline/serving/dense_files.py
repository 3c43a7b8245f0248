"""Files of a servable's dense part, safetensors and ONNX, and the comparison of the ONNX file with torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from pipeline.data.outside import Outside
from pipeline.machine.limits import cpus
from pipeline.models.losses import Output
from pipeline.models.ragged import SequenceValues
from pipeline.own_code.code import plain_name
from pipeline.records import F32, Array
from pipeline.serving.caught_up import RowReader
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.onnx_model import INPUTS, OUTPUT, OnnxDense, inputs_of_sequence
from pipeline.serving.predictor import Predictor
from pipeline.serving.servable import ONNX_FILE, WEIGHTS_FILE
from pipeline.serving.torch_model import TorchDense, model_of
from pipeline.storage.files import Files, tensors
from pipeline.storage.layout import RowLayout
from pipeline.training.build import own_model
from pipeline.training.dense_state import model_state
from pipeline.training.forward import MADE_UP_LENGTH
from pipeline.training.spread import Lists
from pipeline.workflow import Data

EXAMPLES = 3
"""Number of examples in the batch that the exporters trace; the exported batch size is dynamic."""

TOLERANCE = 1e-5
"""Greatest difference of a logit from torch's, relative to the largest logit of the batch, or to 1. Models of the
package differ by 1e-6 at most."""
ROWS_OF_DATA, MADE_ROWS = 256, 25
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
MADE: dict[str, Draw] = {
    "zeros": lambda rng, shape: np.zeros(shape),
    "ties": lambda rng, shape: np.ones(shape),
    "multiples of 0.1": lambda rng, shape: rng.integers(-20, 21, shape) / 10,
    "whole numbers": lambda rng, shape: rng.integers(-5, 6, shape),
    "any values": lambda rng, shape: rng.standard_normal(shape),
    "negative values": lambda rng, shape: -np.abs(rng.standard_normal(shape)),
    "large values": lambda rng, shape: 10 * rng.standard_normal(shape) ** 3,
}
"""Values of made-up rows."""


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


def differences(opened: OpenedCommit, model: torch.nn.Module, content: bytes, rows: RowReader | None = None) -> str:
    """Say where ONNX Runtime's logits differ from torch's by more than rounding; "" if nowhere. `model`: in evaluation
    mode; `content`: content of its ONNX file; `rows`: the rows with which examples of the data are compared as well.
    Raises an exception of any kind if one of the two fails."""
    exact = opened.workflow.model.model_copy(update={"precision": "float32"})
    workflow, said = opened.workflow.model_copy(update={"model": exact}), dict[str, str]()
    onnx = OnnxDense(content, min(workflow.schedule.threads, cpus()), workflow.data.sequences)
    dense = TorchDense(workflow, model)

    def compared(what: str, numbers_BX: F32, embeddings_BFD: F32, first_BF: F32, lists: Lists | None = None, /) -> F32:
        expected = dense(numbers_BX, embeddings_BFD, first_BF, lists)
        try:
            found = onnx(numbers_BX, embeddings_BFD, first_BF, lists)
        except Exception as error:  # Of any kind, as those of ONNX Runtime have no common class.
            raise RuntimeError(f"ONNX Runtime fails on {what}: {error}") from error
        gap = gaps(expected, found)
        if (is_far := gap > TOLERANCE).any():
            said[what] = f"up to {gap.max():.2g} in {is_far.mean():.0%} of the logits"
        return expected

    if rows is not None:
        # Data that can no longer be read are no reason against the file.
        of_data = partial(compared, "rows of the data")
        with suppress(ValueError, OSError, pa.ArrowException):
            predictor = Predictor(workflow, opened.features, opened.layout, lambda: rows, lambda: of_data)
            for _ in predictor.batches(opened.first_rows(ROWS_OF_DATA), Outside("clip")):
                pass
    for what, given in made_rows(workflow.data, opened.layout):
        compared(what, *given)
    return "; ".join(f"{how} ({what})" for what, how in said.items())


def gaps(expected: F32, found: F32) -> np.ndarray:
    """Differences of logits relative to the largest finite one expected, or to 1; infinite if only one of the two is
    NaN or infinite."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(expected.astype(np.float64) - found)
    is_same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    finite = np.abs(expected[np.isfinite(expected)])
    return np.where(is_same, 0, np.where(np.isnan(gap), np.inf, gap)) / max(1.0, finite.max(initial=0))


def made_rows(data: Data, layout: RowLayout) -> Iterator[tuple[str, tuple[F32, F32, F32, Lists | None]]]:
    """Yield batches of made-up inputs of the dense part, each with its name. Histories are empty, short and as long as
    possible, then all empty."""
    rng, fields = np.random.default_rng(0), len(data.categories)
    for what, draw in MADE.items():
        for are_empty in (False, True) if data.sequences else (False,):
            numbers, embeddings, first = (
                draw(rng, (MADE_ROWS, *shape)).astype(np.float32)
                for shape in [(len(data.numbers),), (fields, layout.embedding_dim), (fields * layout.first_order,)]
            )
            lists = _made_lists(data, layout, rng, draw, are_empty) if data.sequences else None
            yield what + " without histories" * are_empty, (numbers, embeddings, first, lists)


def _made_lists(data: Data, layout: RowLayout, rng: np.random.Generator, draw: Draw, are_empty: bool) -> Lists:
    items, numbers, starts = [], [], []
    for sequence in data.sequences:
        lengths = [0] if are_empty else [0, 1, 2, 7, MADE_UP_LENGTH]
        ends = np.cumsum([0, *(min(n, sequence.max_length) for n in islice(cycle(lengths), MADE_ROWS))], dtype=np.int32)
        starts += [ends] * len(sequence.items)
        items += [draw(rng, (ends[-1], layout.embedding_dim)).astype(np.float32) for _ in sequence.items]
        numbers += [draw(rng, (ends[-1],)).astype(np.float32) for _ in sequence.numbers]
    return Lists(tuple(items), np.stack(starts), (0,) * (len(starts) + 1), tuple(numbers))
