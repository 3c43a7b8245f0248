"""Fields of a request's JSON: their types, its parameters, and all that it says besides its inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.serving.http.tensors import shown

T = TypeVar("T")
Scalar = str | int | float | bool

MAX_COUNT = 1 << 48
"""Bound of sizes and microseconds: more than any that is meant."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that a request says besides its inputs."""

    id: str | None
    parameters: Mapping[str, Scalar]
    """Parameters as they were given; the answer repeats them."""
    outputs: Mapping[str, bool]
    """Outputs in the order asked for; True for one as binary data."""
    timeout: float
    """Seconds in which the reading of rows has to begin; infinite if the request does not say."""


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """Parse JSON. Raises ValueError if it is not an object in UTF-8, or contains NaN or Infinity."""
    try:
        found = _DECODER.decode(text.decode())
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    return typed(found, dict, where)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read_wanted(document: Mapping[str, Any], outputs: Sequence[str]) -> Wanted:
    """Read all but the inputs of a request for a model of these outputs. Raises ValueError as `read_request` does."""
    identity = document.get("id")
    if identity is not None:
        typed(identity, str, "id")
    parameters = parameters_of(document, "")
    binary = option_of(parameters, "binary_data_output", False, "")
    timeout = option_of(parameters, "timeout", 0, "")
    if not 0 <= timeout < MAX_COUNT:
        raise ValueError(f"parameters.timeout: {shown(timeout)}, expected microseconds")
    asked: dict[str, bool] = {}
    given = document.get("outputs")
    for n, entry in enumerate([] if given is None else typed(given, list, "outputs")):
        where = f"outputs[{n}]"
        name = typed(typed(entry, dict, where).get("name"), str, f"{where}.name")
        if name not in outputs or name in asked:
            what = "is asked for twice" if name in asked else f"is none of the outputs {listed(outputs)}"
            raise ValueError(f"{where}.name: {shown(name)} {what}")
        own = parameters_of(entry, f"{where}.")
        refuse_extensions(own, where)
        asked[name] = option_of(own, "binary_data", binary, f"{where}.")
    # Zero is the protocol's word for no limit of its own.
    seconds = timeout / 1e6 if timeout else math.inf
    return Wanted(identity, parameters, asked or dict.fromkeys(outputs, binary), seconds)


def parameters_of(owner: Mapping[str, Any], where: str) -> dict[str, Scalar]:
    """Parameters of a request, or of one of its inputs or outputs; null is as none. Raises ValueError if one is no
    scalar."""
    given = owner.get("parameters")
    found: dict[str, Scalar] = {} if given is None else typed(given, dict, f"{where}parameters")
    for name, value in found.items():
        if type(value) not in (str, int, float, bool) or value in (math.inf, -math.inf):
            raise ValueError(
                f"{where}parameters: {shown(name)} is {shown(value)}, expected a string, number or boolean"
            )
    return found


def option_of(parameters: Mapping[str, Scalar], name: str, default: T, where: str) -> T:
    """Value of a parameter that has a meaning to the server. Raises ValueError if it is not of the default's type."""
    return typed(parameters.get(name, default), type(default), f"{where}parameters.{name}")


def refuse_extensions(parameters: Mapping[str, Scalar], where: str) -> None:
    """Raises ValueError if a parameter asks for what this server would silently leave out."""
    for name in parameters:
        if name == "classification" or name.startswith("shared_memory_"):
            raise ValueError(f"{where}: parameters.{name} is of an extension that this server does not have")


def typed(value: object, kind: type[T], where: str) -> T:
    """Return the value. Raises ValueError if it is not of exactly this type: to Python a boolean is an integer."""
    if type(value) is not kind:
        names = {dict: "an object", list: "an array", str: "a string", int: "an integer", bool: "true or false"}
        raise ValueError(f"{where}: expected {names[kind]}, got {shown(value) if value is not None else 'nothing'}")
    return value


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a message."""
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")
