"""Conversion of Open Inference Protocol tensors, as JSON values or binary data, to Arrow arrays.

N elements of a tensor
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.kernels.length_prefixed import split_texts

INTEGER, NUMBER, STRING, BOOLEAN = "an integer", "a number", "a string", "true or false"
JSON_TYPES: Mapping[str, set[type]] = {INTEGER: {int}, NUMBER: {int, float}, STRING: {str}, BOOLEAN: {bool}}
SHOWN = 60
"""Maximum length of a request's value in a message."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """A datatype of the protocol."""

    arrow: pa.DataType
    stored: str
    """NumPy type of binary data; empty for BYTES."""
    json: str
    """Description of a JSON element; empty if the datatype is only for binary data."""


DATATYPES: Mapping[str, Datatype] = {
    "BOOL": Datatype(pa.bool_(), "u1", BOOLEAN),
    "INT8": Datatype(pa.int8(), "i1", INTEGER),
    "INT16": Datatype(pa.int16(), "<i2", INTEGER),
    "INT32": Datatype(pa.int32(), "<i4", INTEGER),
    "INT64": Datatype(pa.int64(), "<i8", INTEGER),
    "UINT8": Datatype(pa.uint8(), "u1", INTEGER),
    "UINT16": Datatype(pa.uint16(), "<u2", INTEGER),
    "UINT32": Datatype(pa.uint32(), "<u4", INTEGER),
    "UINT64": Datatype(pa.uint64(), "<u8", INTEGER),
    "FP16": Datatype(pa.float16(), "<f2", ""),
    "FP32": Datatype(pa.float32(), "<f4", NUMBER),
    "FP64": Datatype(pa.float64(), "<f8", NUMBER),
    "BYTES": Datatype(pa.binary(), "", STRING),
}


def array_of(where: str, datatype: str, num_elements: int, values: list[Any] | None, data: memoryview) -> pa.Array:
    """Make the [N] array of a tensor from JSON values, which may include null, or from binary data if `values` is None.
    `where`: the tensor's name in messages. Raises ValueError if the data do not match the datatype."""
    if values is not None:
        return _from_json(where, datatype, values)
    if datatype == "BYTES":
        return _texts(where, num_elements, data)
    stored = np.dtype(DATATYPES[datatype].stored)
    if len(data) != num_elements * stored.itemsize:
        raise ValueError(
            f"{where}: {len(data)} bytes of binary data, expected {num_elements * stored.itemsize} for {num_elements} "
            f"elements of {datatype}"
        )
    # A copy, since the data may start at any byte of the body and kernels are compiled for aligned arrays.
    values_N = np.frombuffer(data, stored).copy()
    if datatype != "BOOL":
        return pa.Array.from_buffers(DATATYPES[datatype].arrow, len(values_N), [None, pa.py_buffer(values_N)])
    if len(values_N) and values_N.max() > 1:
        raise ValueError(f"{where}: BOOL data has a byte {values_N.max()}, expected 0 or 1")
    return pa.array(values_N.view(np.bool_))


def lists_of(where: str, values: pa.Array, lengths: pa.Array) -> pa.Array:
    """Split values into lists of these lengths; a null length makes a null list.

    Raises ValueError if a length is negative or the lengths do not add up to the number of values.
    """
    nulls = lengths.is_null() if lengths.null_count else None
    lengths_B = lengths.fill_null(0).to_numpy()
    # Each length is checked first, so that the sum cannot overflow.
    bad = np.flatnonzero((lengths_B < 0) | (lengths_B > len(values)))
    if len(bad):
        raise ValueError(f"{where}: length {lengths_B[bad[0]]} of list {bad[0]}, but there are {len(values)} values")
    ends_B = np.concatenate([[0], np.cumsum(lengths_B, dtype=np.int64)])
    if ends_B[-1] != len(values):
        raise ValueError(f"{where}: the lengths add up to {ends_B[-1]}, but there are {len(values)} values")
    return pa.ListArray.from_arrays(pa.array(ends_B.astype(np.int32)), values, mask=nulls)


def _from_json(where: str, datatype: str, values: list[Any]) -> pa.Array:
    kind = DATATYPES[datatype]
    if not kind.json:
        raise ValueError(f"{where}: JSON has no {datatype}: send it as binary data, or as FP32")
    # Types are compared exactly: in Python, a boolean is an integer, and Arrow accepts 1.0 as an integer.
    found = set(map(type, values)) - {type(None)}
    if not found <= JSON_TYPES[kind.json]:
        n = next(n for n, v in enumerate(values) if v is not None and type(v) not in JSON_TYPES[kind.json])
        raise ValueError(f"{where}, element {n}: expected {kind.json} or null for {datatype}, got {shown(values[n])}")
    try:
        if kind.json is NUMBER and int in found:
            values = [None if value is None else float(value) for value in values]
        return pa.array(values, pa.string() if kind.json is STRING else kind.arrow)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        way = "; integers from 2^63 on are UINT64" if datatype == "INT64" else ""
        raise ValueError(f"{where}: a value of its data does not fit {datatype}: {error}{way}") from None


def _texts(where: str, count: int, data: memoryview) -> pa.Array:
    room = len(data) - 4 * count
    if room < 0:
        raise ValueError(f"{where}: {len(data)} bytes of binary data, expected 4 and more for each of {count} texts")
    offsets, texts = np.empty(count + 1, np.int32), np.empty(room, np.uint8)
    bad = split_texts(np.frombuffer(data, np.uint8), offsets, texts)
    if bad == count:
        raise ValueError(f"{where}: the binary data continues after {count} texts")
    if bad >= 0:
        raise ValueError(f"{where}: text {bad} is longer than the binary data")
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


def shown(value: object) -> str:
    """Start of a request's value, for a message."""
    if isinstance(value, int) and value.bit_length() > 4 * SHOWN:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except RecursionError:
        return "a value that is nested deeply"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
