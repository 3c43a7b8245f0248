"""Answers of the Open Inference Protocol: JSON, and binary data after it for outputs that were asked for so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.records import F32
from pipeline.serving.http.arrow import ARROW_STREAM, write_stream
from pipeline.serving.http.fields import Wanted
from pipeline.serving.http.served import Answer, Served

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Encoded:
    """Body of an answer, and the headers that describe it."""

    body: bytes
    headers: dict[str, str]


def write_answer(served: Served, wanted: Wanted, answer: Answer, as_arrow: bool) -> Encoded:
    """Write the scores that were asked for."""
    told: dict[str, Any] = {"model_name": served.name, "model_version": served.version}
    if wanted.id is not None:
        told["id"] = wanted.id
    unknown = {f"unknown_keys.{name}": int(count) for name, count in answer.unknown.items()}
    bad = {f"bad_values.{name}": int(count) for name, count in answer.bad.items()}
    if parameters := {**wanted.parameters, **unknown, **bad}:
        told["parameters"] = parameters
    scores = {name: np.ascontiguousarray(answer.scores[name], np.float32) for name in wanted.outputs}
    if as_arrow:
        return Encoded(write_stream(scores, told), {"Content-Type": ARROW_STREAM})
    told["outputs"] = [output_of(name, scores_B, wanted.outputs[name]) for name, scores_B in scores.items()]
    text = json_bytes(told)
    if not any(wanted.outputs.values()):
        return Encoded(text, {"Content-Type": "application/json"})
    data = [scores[name].astype("<f4", copy=False).tobytes() for name, binary in wanted.outputs.items() if binary]
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return Encoded(b"".join([text, *data]), headers)


def output_of(name: str, scores_B: F32, binary: bool) -> dict[str, Any]:
    """Tensor of an output, with its values unless they are to follow as binary data."""
    described: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": [len(scores_B)]}
    if binary:
        return {**described, "parameters": {"binary_data_size": scores_B.nbytes}}
    # A float32 as a float64 is written with as many digits as bring back its bits. JSON has no word for NaN.
    values = scores_B.tolist()
    if not (finite_B := np.isfinite(scores_B)).all():
        values = [value if is_finite else None for value, is_finite in zip(values, finite_B, strict=True)]
    return {**described, "data": values}


def json_bytes(value: Mapping[str, Any] | list[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
