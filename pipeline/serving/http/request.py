"""Inference requests: the body of a POST as a table of the model's columns, and what is asked of the answer.

A body is JSON, or JSON followed by binary data, which begins at `Inference-Header-Content-Length`. A column is a tensor
of shape [B] or [B, 1]. A list column is two tensors: NAME with the values of all lists, one after the other, and
NAME.lengths. Null is JSON's null; for any tensor T, a BOOL tensor T.null of the same shape, true for null, does the
same, and binary data needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pipeline.data.files import kind_of
from pipeline.serving.http.fields import (
    MAX_COUNT,
    Wanted,
    listed,
    option_of,
    parameters_of,
    parse_object,
    read_wanted,
    refuse_extensions,
    typed,
)  # fmt: skip
from pipeline.serving.http.tensors import DATATYPES, JSON_INTEGER, Tensor, array_of, lists_of, masked, shown
from pipeline.serving.served_model import InputSpec

NO_DATA = memoryview(b"")


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request that was understood."""

    table: pa.Table
    wanted: Wanted


def read_request(
    body: bytes, header_bytes: int | None, inputs: tuple[InputSpec, ...], outputs: Sequence[str]
) -> InferRequest:
    """Read a body of JSON, and of binary data after the first `header_bytes` bytes unless that is None.

    Raises ValueError, with the name of the field, if the request is not one for these inputs and outputs.
    """
    if header_bytes is not None and not 0 <= header_bytes <= len(body):
        raise ValueError(f"Inference-Header-Content-Length: {header_bytes}, but the body has {len(body)} bytes")
    end = len(body) if header_bytes is None else header_bytes
    document = parse_object(body[:end], "the request")
    parts = parts_of(inputs)
    tensors = _tensors(document, memoryview(body)[end:])
    if unknown := tensors.keys() - parts.keys():
        names = listed([name for name in parts if not name.endswith(".null")])
        raise ValueError(f"input {shown(min(unknown))}: the model has no such input; it has {names}")
    columns = {spec.name: _column(spec, tensors) for spec in inputs}
    return InferRequest(_table(columns), read_wanted(document, outputs))


@lru_cache(maxsize=8)
def parts_of(inputs: tuple[InputSpec, ...]) -> dict[str, InputSpec]:
    """Input of each tensor that a request may have, by the tensor's name. Raises ValueError if two inputs have a tensor
    of the same name."""
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
    # Sixteen calls of Arrow for each column would take a third of the time of reading 26 columns of 200 rows.
    return str(kind_of(DATATYPES[datatype].arrow))


def _tensors(document: Mapping[str, Any], data: memoryview) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for n, entry in enumerate(typed(document.get("inputs"), list, "inputs")):
        where = f"inputs[{n}]"
        name = typed(typed(entry, dict, where).get("name"), str, f"{where}.name")
        if name in tensors:
            raise ValueError(f"{where}.name: input {shown(name)} is there twice")
        where = f"input {shown(name)}"
        datatype = typed(entry.get("datatype"), str, f"{where}: datatype")
        if datatype not in DATATYPES:
            raise ValueError(f"{where}: datatype {shown(datatype)} is none of {', '.join(DATATYPES)}")
        shape = _shape(entry, where)
        own = parameters_of(entry, f"{where}: ")
        refuse_extensions(own, where)
        num_bytes = option_of(own, "binary_data_size", -1, f"{where}: ")
        if num_bytes < 0 or "data" in entry:
            if "binary_data_size" in own:
                raise ValueError(f"{where}: binary_data_size {shown(num_bytes)}; give it or data, and not below 0")
            values = _flat(entry.get("data"), shape, where)
            tensors[name] = Tensor(name, datatype, shape[0], values, NO_DATA)
            continue
        if num_bytes > len(data):
            raise ValueError(
                f"{where}: binary_data_size {shown(num_bytes)}, but {len(data)} bytes are left in the body"
            )
        tensors[name] = Tensor(name, datatype, shape[0], None, data[:num_bytes])
        data = data[num_bytes:]
    if len(data):
        raise ValueError(f"the body goes on for {len(data)} bytes after the binary data of all inputs")
    return tensors


def _shape(entry: Mapping[str, Any], where: str) -> list[int]:
    shape: list[int] = typed(entry.get("shape"), list, f"{where}: shape")
    whole = all(type(size) is int and 0 <= size < MAX_COUNT for size in shape)
    if not whole or not (len(shape) == 1 or shape[1:] == [1]):
        raise ValueError(f"{where}: shape {shown(shape)}, expected [values] or [values, 1]")
    return shape


def _flat(data: Any, shape: list[int], where: str) -> list[Any]:
    """JSON values of a tensor; those of shape [N, 1] may be nested."""
    values = typed(data, list, f"{where}: data")
    if len(values) != shape[0]:
        raise ValueError(f"{where}: {len(values)} values in data, expected {shown(shape[0])} for shape {shown(shape)}")
    if len(shape) == 2 and any(type(value) is list for value in values):
        if not all(type(value) is list and len(value) == 1 for value in values):
            raise ValueError(f"{where}: data is not of shape {shown(shape)}")
        values = [value[0] for value in values]
    return values


def _column(spec: InputSpec, tensors: Mapping[str, Tensor]) -> pa.Array:
    values, got, expected = _array(spec.name, tensors), tensors[spec.name].datatype, _kind(spec.datatype)
    if _kind(got) not in (expected, "integers" if expected == "numbers" else ""):
        raise ValueError(f"input {spec.name!r}: got {got}, expected {expected} (such as {spec.datatype})")
    if spec.is_list:
        name = f"{spec.name}.lengths"
        lengths = _array(name, tensors, is_lengths=True)
        if DATATYPES[tensors[name].datatype].json is not JSON_INTEGER:
            raise ValueError(f"input {name!r}: got {tensors[name].datatype}, expected integers (such as INT64)")
        return lists_of(f"input {name!r}", values, lengths)
    return values


def _array(name: str, tensors: Mapping[str, Tensor], is_lengths: bool = False) -> pa.Array:
    if name not in tensors:
        lengths = ": the length of each row's list" if is_lengths else ""
        raise ValueError(f"input {name!r} is missing{lengths}")
    array = array_of(tensors[name])
    if (mask := tensors.get(f"{name}.null")) is None:
        return array
    nulls = array_of(mask)
    if mask.datatype != "BOOL" or len(nulls) != len(array) or nulls.null_count:
        raise ValueError(f"input {mask.name!r}: expected {len(array)} values true or false, as {name!r} has elements")
    return masked(array, nulls)


def _table(columns: Mapping[str, pa.Array]) -> pa.Table:
    first = next(iter(columns))
    for name, column in columns.items():
        if len(column) != len(columns[first]):
            raise ValueError(f"input {name!r} has {len(column)} rows, but {first!r} has {len(columns[first])}")
    if not len(columns[first]):
        raise ValueError(f"input {first!r}: no rows")
    return pa.Table.from_arrays(list(columns.values()), list(columns))
