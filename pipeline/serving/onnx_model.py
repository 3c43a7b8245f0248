"""Dense part of a model in ONNX Runtime: no torch, and no code of the model's class."""

from __future__ import annotations

from pipeline.records import F32

INPUTS = ("numbers", "embeddings", "first_order")
"""Inputs, float32: [B, X], [B, F, D], and [B, F] or, without first-order weights, [B, 0]."""
OUTPUT = "logits"
"""Output, float32: [B], or [B, T] with several labels."""


class OnnxDense:
    """Forward pass in ONNX Runtime. Thread-safe."""

    def __init__(self, content: bytes, num_threads: int) -> None:
        """`content`: that of the file. Raises ValueError if ONNX Runtime is not installed or refuses the model."""
        try:
            import onnxruntime
        except ImportError as error:
            raise ValueError(
                "ONNX Runtime is not installed; install the extra serve, or use the backend torch"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        # Its own arena would keep the memory of the largest batch for ever.
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ValueError(f"ONNX Runtime refuses the model: {error}") from error
        self._inputs = {one.name for one in self._session.get_inputs()}

    def __call__(self, numbers_BX: F32, embeddings_BFD: F32, first_BF: F32, lists: object = None, /) -> F32:
        assert lists is None, "models of sequences have no ONNX file"
        given = dict(zip(INPUTS, (numbers_BX, embeddings_BFD, first_BF), strict=True))
        used = {name: value for name, value in given.items() if name in self._inputs}
        scores_B: F32 = self._session.run([OUTPUT], used)[0]
        return scores_B
