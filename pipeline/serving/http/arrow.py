"""Arrow IPC streams as bodies: a request's columns, and an answer's scores.

What JSON says besides the tensors (`id`, `parameters`, `outputs`; in the answer `model_version` and so on) is the same
JSON object, in the schema's metadata under REQUEST and RESPONSE.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.records import F32
from pipeline.serving.http.fields import parse_object, read_wanted
from pipeline.serving.http.request import InferRequest, check_kind
from pipeline.serving.http.served import InputSpec
from pipeline.serving.http.tensors import shown

ARROW_STREAM = "application/vnd.apache.arrow.stream"
REQUEST = b"inference_request"
RESPONSE = b"inference_response"

# Field numbers of Arrow's Message.fbs.
MESSAGE_HEADER = 2
DICTIONARY_DATA = 1
COMPRESSION = 3


def read_stream(body: bytes, inputs: tuple[InputSpec, ...], outputs: Sequence[str]) -> InferRequest:
    """Read a stream with a column for each input, in any order and number of batches.

    Raises ValueError, with the name of the column, if the request is not one for these inputs and outputs.
    """
    try:
        _refuse_compression(body)
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        # Offsets and lengths in the stream are those of the sender: a wrong one would be read out of bounds later.
        table.validate(full=True)
        if any(column.num_chunks != 1 for column in table.columns):
            table = table.unify_dictionaries().combine_chunks()
        text = (table.schema.metadata or {}).get(REQUEST, b"{}")
    except (pa.ArrowException, ValueError, OSError, KeyError, struct.error) as error:
        raise ValueError(f"the body is no Arrow IPC stream that can be read: {error}") from None
    names = table.schema.names
    for spec in inputs:
        if names.count(spec.name) != 1:
            problem = "is missing" if spec.name not in names else f"is there {names.count(spec.name)} times"
            raise ValueError(f"input {spec.name!r} {problem}")
        found = table.schema.field(spec.name).type
        check_kind(spec, found, str(found))
    if len(names) > len(inputs):
        extra = min(set(names) - {spec.name for spec in inputs})
        raise ValueError(f"input {shown(extra)}: the model has no such input")
    if not table.num_rows:
        raise ValueError(f"input {names[0]!r}: no rows")
    wanted = read_wanted(parse_object(text, f"{REQUEST.decode()} of the schema's metadata"), outputs)
    return InferRequest(table.select([spec.name for spec in inputs]), wanted)


def write_stream(scores: Mapping[str, F32], told: Mapping[str, Any]) -> bytes:
    """Write a stream with a float32 column for each output; null for NaN."""
    table = pa.table({name: pa.array(scores_B, from_pandas=True) for name, scores_B in scores.items()})
    table = table.replace_schema_metadata({RESPONSE: json.dumps(told)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _refuse_compression(body: bytes) -> None:
    """Raises ValueError if a batch of the stream is compressed: its size in memory would have no bound. Arrow does not
    tell, so this reads the metadata of each message, a FlatBuffers table."""
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type not in ("record batch", "dictionary"):
            continue
        metadata = message.metadata.to_pybytes()
        header = _follow(metadata, _follow(metadata, 0), MESSAGE_HEADER)
        if message.type == "dictionary":
            header = _follow(metadata, header, DICTIONARY_DATA)
        if _field_at(metadata, header, COMPRESSION):
            raise ValueError("its batches are compressed; write them without compression")


def _follow(data: bytes, table: int, field: int | None = None) -> int:
    """Position of the table to which a field of a FlatBuffers table refers; without a field, of the root table."""
    at = table if field is None else _field_at(data, table, field)
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field_at(data: bytes, table: int, field: int) -> int:
    """Position of a field of a FlatBuffers table, or 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    vtable_bytes = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * field
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot < vtable_bytes else 0
    return table + offset if offset else 0
