"""Dense part of a model in ONNX Runtime, without torch or the code of the model class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.records import F32, I64
from pipeline.training.spread import Lists
from pipeline.workflow import Sequence as ListsOfExamples

INPUTS = ("numbers", "embeddings", "first_order")
"""Inputs, float32: [B, X], [B, F, D], and [B, F] ([B, 0] without first-order weights)."""
"""The inputs of each sequence follow; see `inputs_of_sequence`."""
OUTPUT = "logits"
"""Output, float32: [B], or [B, T] with several labels."""


def inputs_of_sequence(sequence: ListsOfExamples) -> list[str]:
    """Names of the inputs of a sequence: int64 [B + 1] offsets of each example's first value, and the end of the last;
    item lists, float32 [V, D]; number lists, float32 [V]."""
    return [
        f"offsets.{sequence.name}",
        *(f"items.{name}" for name in sequence.items),
        *(f"numbers.{name}" for name in sequence.numbers),
    ]


class OnnxDense:
    """Forward pass in ONNX Runtime. Thread-safe."""

    def __init__(self, content: bytes, num_threads: int, sequences: Sequence[ListsOfExamples] = ()) -> None:
        """`content`: content of the file; `sequences`: those of the workflow. Raises ValueError if ONNX Runtime is not
        installed or rejects the model."""
        try:
            import onnxruntime
        except ImportError as error:
            raise ValueError(
                "ONNX Runtime is not installed; install the extra serve, or use the backend torch"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        # The arena would never release the memory of the largest batch.
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ValueError(f"ONNX Runtime refuses the model: {error}") from error
        self._sequences = sequences
        self._inputs = {one.name for one in self._session.get_inputs()}

    def __call__(self, numbers_BX: F32, embeddings_BFD: F32, first_BF: F32, lists: Lists | None = None, /) -> F32:
        given: dict[str, F32 | I64] = dict(zip(INPUTS, (numbers_BX, embeddings_BFD, first_BF), strict=True))
        item = number = 0
        for sequence in self._sequences:
            assert lists, "a model of sequences gets them"
            offsets = lists.starts_LB[item].astype(np.int64) - lists.firsts[item]
            values = *lists.items[item:][: len(sequence.items)], *lists.numbers[number:][: len(sequence.numbers)]
            given |= dict(zip(inputs_of_sequence(sequence), (offsets, *values), strict=True))
            item, number = item + len(sequence.items), number + len(sequence.numbers)
        used = {name: value for name, value in given.items() if name in self._inputs}
        scores_B: F32 = self._session.run([OUTPUT], used)[0]
        return scores_B
