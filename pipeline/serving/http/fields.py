"""Fields of a request's JSON, and the request's options besides its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import pyarrow as pa
from pydantic import Field

from pipeline.serving.http.tensors import shown
from pipeline.settings import Strict

T = TypeVar("T")
Scalar = str | int | float | bool

MAX_COUNT = 1 << 48
"""Upper bound of sizes and microseconds, above any plausible value."""


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
