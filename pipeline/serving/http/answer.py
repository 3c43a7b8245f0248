"""Processing of a request body into an answer: JSON, followed by the outputs that were requested in binary."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.records import F32
from pipeline.serving.http.admission import RequestError
from pipeline.serving.http.request import NO_DATA, InferRequest, read_request
from pipeline.serving.http.tensors import array_of
from pipeline.serving.served_model import Answer, ServedModel

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Answered:
    """Body and headers of an answer, with the values that metrics count."""

    body: bytes
    headers: dict[str, str]
    num_rows: int
    answer: Answer


def answer_post(
    served: ServedModel, body: bytes, header_bytes: int | None, refuse_late: Callable[[float], None]
) -> Answered:
    """Read a request, score it and write the answer. `header_bytes`: length of the JSON before binary data; None if the
    whole body is JSON. `refuse_late`: called before rows are read, with the seconds that the request allows until then;
    raises an exception if they have passed.

    Raises RequestError if the request is invalid (400) or a page of the servable cannot be read (500).
    """
    try:
        request = read_request(body, header_bytes, served.inputs, served.outputs)
        refuse_late(request.timeout)
        answer = served.predict(request.table)
    except ValueError as error:
        raise RequestError(400, str(error)) from error
    except OSError as error:
        raise RequestError(500, f"rows could not be read: {error}") from error
    return Answered(*write_answer(served, request, answer), request.table.num_rows, answer)


def probe(served: ServedModel) -> None:
    """Score one row. Raises what `predict` raises."""
    # Binary texts are split by a kernel that is loaded at its first call.
    array_of("", "BYTES", 0, None, NO_DATA)
    served.predict(served.example())


def write_answer(served: ServedModel, wanted: InferRequest, answer: Answer) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an answer with the requested scores."""
    document: dict[str, Any] = {"model_name": served.name, "model_version": served.version}
    if wanted.id is not None:
        document["id"] = wanted.id
    unknown = {f"unknown_keys.{name}": int(count) for name, count in answer.unknown.items()}
    bad = {f"bad_values.{name}": int(count) for name, count in answer.bad.items()}
    if parameters := {**wanted.parameters, **unknown, **bad}:
        document["parameters"] = parameters
    scores = {name: np.ascontiguousarray(answer.scores[name], np.float32) for name in wanted.outputs}
    document["outputs"] = [output_of(name, scores_B, wanted.outputs[name]) for name, scores_B in scores.items()]
    text = json_bytes(document)
    if not any(wanted.outputs.values()):
        return text, {"Content-Type": "application/json"}
    data = [scores[name].astype("<f4", copy=False).tobytes() for name, binary in wanted.outputs.items() if binary]
    return b"".join([text, *data]), {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}


def output_of(name: str, scores_B: F32, binary: bool) -> dict[str, Any]:
    """Tensor of an output; its values are omitted if they follow as binary data."""
    described: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": [len(scores_B)]}
    if binary:
        return {**described, "parameters": {"binary_data_size": scores_B.nbytes}}
    # A float32 converted to float64 is written with enough digits to restore its bits. JSON has no NaN.
    return {**described, "data": [value if math.isfinite(value) else None for value in scores_B.tolist()]}


def json_bytes(value: Mapping[str, Any] | list[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
