"""Comparison of an ONNX file with torch, on rows of the data and on made-up ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle, islice

import numpy as np
import pyarrow as pa
import torch

from pipeline.data.files import columns_of, resolve
from pipeline.data.outside import Outside
from pipeline.features.derived import inputs_of
from pipeline.files.flat import open_file
from pipeline.machine.limits import cpus
from pipeline.records import F32
from pipeline.serving.caught_up import RowReader
from pipeline.serving.commit import OpenedCommit
from pipeline.serving.onnx_model import OnnxDense
from pipeline.serving.predictor import DensePart, Predictor
from pipeline.serving.torch_model import TorchDense
from pipeline.storage.layout import RowLayout
from pipeline.training.items import Lists
from pipeline.training.ragged import MADE_UP_LENGTH
from pipeline.workflow import Data

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


def differences(opened: OpenedCommit, model: torch.nn.Module, content: bytes, rows: RowReader | None = None) -> str:
    """Say where ONNX Runtime's logits differ from torch's by more than rounding; "" if nowhere. `model`: in evaluation
    mode; `content`: content of its ONNX file; `rows`: the rows with which examples of the data are compared as well.
    Raises an exception of any kind if one of the two fails."""
    exact = opened.workflow.model.model_copy(update={"precision": "float32"})
    workflow, said = opened.workflow.model_copy(update={"model": exact}), dict[str, str]()
    onnx = OnnxDense(content, min(workflow.schedule.threads, cpus()), workflow.data.sequences)
    compared = _Compared(TorchDense(workflow, model), onnx, said)
    if rows is not None:
        # Data that can no longer be read are no reason against the file.
        with suppress(ValueError, OSError, pa.ArrowException):
            predictor = Predictor(workflow, opened.features, opened.layout, lambda: rows, lambda: compared)
            for _ in predictor.batches(_rows_of_data(opened), Outside("clip")):
                pass
    for compared.what, given in made_rows(workflow.data, opened.layout):
        compared(*given)
    return "; ".join(f"{how} ({what})" for what, how in said.items())


class _Compared:
    """Forward pass in torch that writes differences of ONNX Runtime's to `said`."""

    def __init__(self, torch_dense: DensePart, onnx_dense: DensePart, said: dict[str, str]) -> None:
        self.what, self._torch, self._onnx, self._said = "rows of the data", torch_dense, onnx_dense, said

    def __call__(self, numbers_BX: F32, embeddings_BFD: F32, first_BF: F32, lists: Lists | None = None, /) -> F32:
        expected = self._torch(numbers_BX, embeddings_BFD, first_BF, lists)
        try:
            found = self._onnx(numbers_BX, embeddings_BFD, first_BF, lists)
        except Exception as error:  # Of any kind, as those of ONNX Runtime have no common class.
            raise RuntimeError(f"ONNX Runtime fails on {self.what}: {error}") from error
        gap = gaps(expected, found)
        if (is_far := gap > TOLERANCE).any():
            self._said[self.what] = f"up to {gap.max():.2g} in {is_far.mean():.0%} of the logits"
        return expected


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


def _rows_of_data(opened: OpenedCommit) -> pa.Table:
    """Return the inputs of the first rows of the test split, or else of validation or training. Raises ValueError,
    OSError or ArrowException if they cannot be read."""
    data = opened.workflow.data
    used = [column.name for column in columns_of(data) if column.has_rows or column.number or column.sequence]
    names = inputs_of(data.features, used)
    for split in ("test", "validation", "train"):
        for path in resolve(data, split, opened.description):
            with open_file(path) as file:
                batch = next(file.iter_batches(ROWS_OF_DATA, columns=names, use_threads=False), None)
                if batch is not None and len(batch):
                    return pa.Table.from_batches([batch])
    raise ValueError("no file has rows")
