"""Parsing of inference requests: the body of a POST as a table of the model's columns, and the request's options.

A body is JSON, or JSON followed by binary data, which starts at `Inference-Header-Content-Length`. A column is a tensor
of shape [B] or [B, 1]. A list column is two tensors: NAME with the values of all lists, concatenated, and NAME.lengths.
Nulls are JSON nulls, or true values in a BOOL tensor T.null of the same shape as the tensor T. Binary data requires the
latter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.types import kind_of
from pipeline.serving.http.fields import InferDocument, InferRequest, InputTensor, listed, read_wanted
from pipeline.serving.http.tensors import DATATYPES, INTEGER, array_of, lists_of, shown
from pipeline.serving.served_model import InputSpec
from pipeline.settings import read_json

NO_DATA = memoryview(b"")
Tensors = Mapping[str, tuple[str, pa.Array]]
"""Datatype and [N] array of each tensor in a request, by name."""


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
