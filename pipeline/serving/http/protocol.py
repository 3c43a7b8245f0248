"""HTTP of a connection by httptools, which is faster than h11 but has no limit for what is not body. This has one."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_OTHER_BYTES = 1 << 20
"""Maximum number of bytes in a row that are neither body nor the framing of its chunks. Heads have some hundred."""
FRAMED_BYTES = 6
"""Bytes that a byte of a body takes with its framing, if each is a chunk of its own."""


class BoundedHttp(HttpToolsProtocol):
    """HTTP that refuses a head, or what comes after a body, that goes on for ever: the parser would keep all of it."""

    _other_bytes = 0
    _body_bytes = 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._other_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        self._body_bytes = 0
        super().data_received(data)
        self._other_bytes = max(0, self._other_bytes + len(data) - FRAMED_BYTES * self._body_bytes)
        if self._other_bytes > MAX_OTHER_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request, or what comes after its body, is too long.")
