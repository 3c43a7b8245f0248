"""Client of the Open Inference Protocol: builds requests from tables, and calls an application without a socket."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass, field

import numpy as np

from pipeline.serving.http.tensors import DATATYPES

LENGTH = "Inference-Header-Content-Length"


def tensors_of(table, inputs):
    """(name, datatype, values) of each tensor of a table."""
    for spec in inputs:
        values = table[spec.name].to_pylist()
        if spec.is_list:
            yield spec.name, spec.datatype, [v for some in values if some is not None for v in some]
            yield f"{spec.name}.lengths", "INT32", [None if some is None else len(some) for some in values]
        else:
            yield spec.name, spec.datatype, values


def json_request(table, inputs, **more):
    tensors = [
        {"name": name, "datatype": datatype, "shape": [len(values)], "data": values}
        for name, datatype, values in tensors_of(table, inputs)
    ]
    return json.dumps({"inputs": tensors, **more}).encode()


def to_bytes(datatype, values):
    """Binary data of a tensor; a null becomes zero or the empty string."""
    if datatype == "BYTES":
        texts = [v.encode() if isinstance(v, str) else v or b"" for v in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.array([0 if v is None else v for v in values], DATATYPES[datatype].stored).tobytes()


def binary_request(table, inputs, **more):
    """Body of a request, and the length of its JSON."""
    described, data = [], []
    for name, datatype, values in tensors_of(table, inputs):
        tensors = [(name, datatype, values)]
        if None in values:
            tensors.append((f"{name}.null", "BOOL", [v is None for v in values]))
        for name, datatype, values in tensors:
            data.append(to_bytes(datatype, values))
            size = {"binary_data_size": len(data[-1])}
            described.append({"name": name, "datatype": datatype, "shape": [len(values), 1], "parameters": size})
    text = json.dumps({"inputs": described, **more}).encode()
    return text + b"".join(data), len(text)


@dataclass
class Reply:
    status: int = 0
    headers: dict = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self):
        size = self.headers.get(LENGTH.lower())
        return json.loads(self.body[: int(size)] if size else self.body)


async def call(app, method, path, body=b"", headers=None, pieces=None, replies=None):
    """Call an ASGI application. `pieces`: a body without Content-Length, as an asynchronous iterable. The reply is also
    appended to `replies`, even if the application raises an exception."""
    headers = {"content-length": str(len(body))} | (headers or {}) if pieces is None else headers or {}
    reply = Reply()
    replies = [] if replies is None else replies
    replies.append(reply)

    async def whole():
        yield body

    coming = aiter(pieces or whole())

    async def receive():
        piece = await anext(coming, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(message):
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message["body"]

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(errors="replace"), "query_string": b"",
        "root_path": "", "scheme": "http", "http_version": "1.1",
        "headers": [(name.lower().encode(), str(value).encode("latin-1")) for name, value in headers.items()],
    }  # fmt: skip
    await app(scope, receive, send)
    return reply


def call_once(app, *args, **named):
    return asyncio.run(call(app, *args, **named))
