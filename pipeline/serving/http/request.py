"""Inference requests and answers: the body of a POST as a table of the model's columns, the request's options, and the
answer, which is JSON, followed by the outputs that were requested in binary.

A body is JSON, or JSON followed by binary data, which starts at `Inference-Header-Content-Length`. A column is a tensor
of shape [B] or [B, 1]. A list column is two tensors: NAME with the values of all lists, concatenated, and NAME.lengths.
Nulls are JSON nulls, or true values in a BOOL tensor T.null of the same shape as the tensor T. Binary data requires the
latter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from pipeline.files.types import kind_of
from pipeline.records import F32
from pipeline.serving.http.admission import RequestError
from pipeline.serving.http.tensors import DATATYPES, INTEGER, array_of, lists_of, shown
from pipeline.serving.served_model import Answer, InputSpec, ServedModel
from pipeline.settings import Strict, read_json

NO_DATA = memoryview(b"")
Tensors = Mapping[str, tuple[str, pa.Array]]
"""Datatype and [N] array of each tensor in a request, by name."""

T = TypeVar("T")
Scalar = str | int | float | bool

MAX_COUNT = 1 << 48
"""Upper bound of sizes and microseconds, above any plausible value."""


def read_request(
    body: bytes, header_bytes: int | None, inputs: tuple[InputSpec, ...], outputs: Sequence[str]
) -> InferRequest:
    """Read a body of JSON, followed by binary data after `header_bytes` bytes unless that is None.

    Raises ValueError, with the name of the field, if the request does not match these inputs and outputs.
    """
    if header_bytes is not None and not 0 <= header_bytes <= len(body):
        raise ValueError(f"Inference-Header-Content-Length: {header_bytes}, but the body has {len(body)} bytes")
    end = len(body) if header_bytes is None else header_bytes
    document = read_json(InferDocument, body[:end])
    tensors = _tensors(document, memoryview(body)[end:], parts_of(inputs))
    columns = {spec.name: _column(spec, tensors) for spec in inputs}
    return read_wanted(_table(columns), document, outputs)


@lru_cache(maxsize=8)
def parts_of(inputs: tuple[InputSpec, ...]) -> dict[str, InputSpec]:
    """Input that each possible tensor of a request belongs to, by tensor name. Raises ValueError if two inputs have a
    tensor of the same name."""
    parts: dict[str, InputSpec] = {}
    for spec in inputs:
        for name in (spec.name, f"{spec.name}.lengths") if spec.is_list else (spec.name,):
            for part in (name, f"{name}.null"):
                if parts.setdefault(part, spec) is not spec:
                    raise ValueError(
                        f"columns {parts[part].name!r} and {spec.name!r} would both have a tensor {part!r}"
                    )
    return parts


@lru_cache(maxsize=256)
def _kind(datatype: str) -> str:
    # Cached: sixteen Arrow calls per column would take a third of the time to read 26 columns of 200 rows.
    return str(kind_of(DATATYPES[datatype].arrow))


def _tensors(document: InferDocument, data: memoryview, parts: Mapping[str, InputSpec]) -> Tensors:
    """Read the tensors of a request. `data`: binary data of the body."""
    tensors: dict[str, tuple[str, pa.Array]] = {}
    for n, entry in enumerate(document.inputs):
        where = f"input {shown(entry.name)}"
        if entry.name in tensors:
            raise ValueError(f"inputs.{n}.name: {where} is there twice")
        if entry.name not in parts:
            names = listed([name for name in parts if not name.endswith(".null")])
            raise ValueError(f"{where}: the model has no such input; it has {names}")
        if entry.datatype not in DATATYPES:
            raise ValueError(f"{where}: datatype {shown(entry.datatype)} is not one of {', '.join(DATATYPES)}")
        if len(entry.shape) != 1 and entry.shape[1:] != [1]:
            raise ValueError(f"{where}: shape {shown(entry.shape)}, expected [values] or [values, 1]")
        entry.refuse_extensions(where)
        num_bytes = entry.option("binary_data_size", -1, f"{where}: ")
        values, own = None, NO_DATA
        if num_bytes < 0 or entry.data is not None:
            if "binary_data_size" in (entry.parameters or {}):
                raise ValueError(f"{where}: binary_data_size {shown(num_bytes)}; give data, or a size of 0 or more")
            values = _flat(entry, where)
        elif num_bytes > len(data):
            raise ValueError(
                f"{where}: binary_data_size {shown(num_bytes)}, but {len(data)} bytes are left in the body"
            )
        else:
            own, data = data[:num_bytes], data[num_bytes:]
        tensors[entry.name] = entry.datatype, array_of(where, entry.datatype, entry.shape[0], values, own)
    if len(data):
        raise ValueError(f"the body has {len(data)} bytes too many after the binary data of all inputs")
    return tensors


def _flat(entry: InputTensor, where: str) -> list[Any]:
    """Flat JSON values of a tensor; those of shape [N, 1] may be nested."""
    if (values := entry.data) is None or len(values) != entry.shape[0]:
        raise ValueError(f"{where}: {len(values or ())} values in data, expected {entry.shape[0]}")
    if len(entry.shape) == 2 and any(type(value) is list for value in values):
        if not all(type(value) is list and len(value) == 1 for value in values):
            raise ValueError(f"{where}: data is not of shape {shown(entry.shape)}")
        values = [value[0] for value in values]
    return values


def _column(spec: InputSpec, tensors: Tensors) -> pa.Array:
    values, got, expected = _array(spec.name, tensors), tensors[spec.name][0], _kind(spec.datatype)
    others = ("numbers", "text") if spec.time and expected == "integers" else ("integers",) * (expected == "numbers")
    if _kind(got) not in (expected, *others):
        raise ValueError(f"input {spec.name!r}: got {got}, expected {expected} (such as {spec.datatype})")
    if not spec.is_list:
        return values
    name = f"{spec.name}.lengths"
    lengths, got = _array(name, tensors, is_lengths=True), tensors[name][0]
    if DATATYPES[got].json is not INTEGER:
        raise ValueError(f"input {name!r}: got {got}, expected integers (such as INT64)")
    return lists_of(f"input {name!r}", values, lengths)


def _array(name: str, tensors: Tensors, is_lengths: bool = False) -> pa.Array:
    if name not in tensors:
        lengths = ": the length of each row's list" if is_lengths else ""
        raise ValueError(f"input {name!r} is missing{lengths}")
    array, mask = tensors[name][1], f"{name}.null"
    if mask not in tensors:
        return array
    datatype, nulls = tensors[mask]
    if datatype != "BOOL" or len(nulls) != len(array) or nulls.null_count:
        raise ValueError(f"input {mask!r}: expected {len(array)} values true or false, as {name!r} has elements")
    return pc.if_else(nulls, pa.scalar(None, array.type), array)


def _table(columns: Mapping[str, pa.Array]) -> pa.Table:
    first = next(iter(columns))
    for name, column in columns.items():
        if len(column) != len(columns[first]):
            raise ValueError(f"input {name!r} has {len(column)} rows, but {first!r} has {len(columns[first])}")
    if not len(columns[first]):
        raise ValueError(f"input {first!r}: no rows")
    return pa.Table.from_arrays(list(columns.values()), list(columns))


class Message(Strict, extra="ignore"):
    """Part of a request; unknown fields are ignored."""

    parameters: dict[str, Scalar] | None = None

    def option(self, name: str, default: T, where: str) -> T:
        """Value of a parameter that the server reads. Raises ValueError if its type differs from the default's."""
        value = (self.parameters or {}).get(name, default)
        if type(value) is not type(default):
            raise ValueError(f"{where}parameters.{name}: got {shown(value)}, expected {type(default).__name__}")
        return value


class Tensor(Message):
    """Part of a request that describes an input or requests an output."""

    name: str

    def refuse_extensions(self, where: str) -> None:
        """Raises ValueError if a parameter requests an unsupported extension, which would otherwise be silently
        ignored."""
        for name in self.parameters or {}:
            if name == "classification" or name.startswith("shared_memory_"):
                raise ValueError(
                    f"{where}: parameters.{name} belongs to an extension that this server does not support"
                )


class InputTensor(Tensor):
    datatype: str
    shape: list[Annotated[int, Field(ge=0, lt=MAX_COUNT)]]
    data: list[Any] | None = None


class InferDocument(Message):
    """JSON of a request."""

    id: str | None = None
    inputs: list[InputTensor]
    outputs: list[Tensor] | None = None


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A parsed request: its inputs and options."""

    table: pa.Table
    id: str | None
    parameters: Mapping[str, Scalar]
    """Parameters as given; the answer repeats them."""
    outputs: Mapping[str, bool]
    """Outputs in the order requested; True for binary data."""
    timeout: float
    """Seconds within which the reading of rows must start; infinite if the request sets no limit."""


def read_wanted(table: pa.Table, document: InferDocument, outputs: Sequence[str]) -> InferRequest:
    """Read everything except the inputs of a request. `table`: the inputs; `outputs`: those of the model. Raises
    ValueError as `read_request` does."""
    binary, timeout = document.option("binary_data_output", False, ""), document.option("timeout", 0, "")
    if not 0 <= timeout < MAX_COUNT:
        raise ValueError(f"parameters.timeout: {shown(timeout)}, expected microseconds")
    asked: dict[str, bool] = {}
    for n, output in enumerate(document.outputs or ()):
        where = f"outputs.{n}"
        if output.name not in outputs or output.name in asked:
            what = "is asked for twice" if output.name in asked else f"is not one of the outputs {listed(outputs)}"
            raise ValueError(f"{where}.name: {shown(output.name)} {what}")
        output.refuse_extensions(where)
        asked[output.name] = output.option("binary_data", binary, f"{where}.")
    # In the protocol, zero means that the request sets no limit.
    seconds = timeout / 1e6 if timeout else math.inf
    return InferRequest(table, document.id, document.parameters or {}, asked or dict.fromkeys(outputs, binary), seconds)


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names as text for a message, truncated to `most`."""
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


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
