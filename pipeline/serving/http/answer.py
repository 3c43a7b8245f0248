"""One request from its body to the body of its answer. The server puts one to each servable before it serves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pipeline.serving.http.arrow import ARROW_STREAM, read_stream
from pipeline.serving.http.errors import RequestError
from pipeline.serving.http.request import NO_DATA, read_request
from pipeline.serving.http.response import Encoded, write_answer
from pipeline.serving.http.served import Answer, Served
from pipeline.serving.http.tensors import Tensor, array_of


@dataclass(frozen=True, slots=True)
class Post:
    """Body of an inference request."""

    body: bytes
    media_type: str
    header_bytes: int | None
    """Length of the JSON before binary data; None if all of the body is JSON."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and what it counts for."""

    encoded: Encoded
    num_rows: int
    answer: Answer


def answer_post(served: Served, post: Post, refuse_late: Callable[[float], None]) -> Answered:
    """Read a request, score it and write the answer. `refuse_late` is called before rows are read, with the seconds
    that the request allows until then, and raises an exception if they have passed.

    Raises RequestError if the request is bad (400), or a page of the servable (500).
    """
    as_arrow = post.media_type == ARROW_STREAM
    try:
        if as_arrow:
            request = read_stream(post.body, served.inputs, served.outputs)
        else:
            request = read_request(post.body, post.header_bytes, served.inputs, served.outputs)
        refuse_late(request.wanted.timeout)
        answer = served.predict(request.table)
    except ValueError as error:
        raise RequestError(400, str(error)) from error
    except OSError as error:
        raise RequestError(500, f"rows could not be read: {error}") from error
    encoded = write_answer(served, request.wanted, answer, as_arrow)
    return Answered(encoded, request.table.num_rows, answer)


def probe(served: Served) -> None:
    """Put one request to a servable. Raises OSError, or what `predict` raises, if it has no answer."""
    # Texts of binary data have a kernel, which is loaded when it is first called.
    array_of(Tensor("", "BYTES", 0, None, NO_DATA))
    example = served.example()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, example.schema) as writer:
        writer.write_table(example)
    try:
        answer_post(served, Post(sink.getvalue().to_pybytes(), ARROW_STREAM, None), lambda timeout: None)
    except RequestError as error:
        raise OSError(str(error)) from error
