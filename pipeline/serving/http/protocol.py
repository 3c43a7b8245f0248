"""HTTP connections with httptools, which is faster than h11 but does not limit bytes outside bodies. This module adds
that limit, and limits the time that a client may take and the number of connections."""

from __future__ import annotations

import asyncio
import math
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pipeline.serving.http.admission import RETRY_SECONDS

MAX_OTHER_BYTES = 1 << 20
"""Maximum number of consecutive bytes that are neither body nor chunk framing. A head has a few hundred bytes."""
FRAMED_BYTES = 6
"""Bytes per body byte, including framing, if each byte is a separate chunk."""
MAX_PIPELINED = 16
"""Maximum number of requests waiting for the answer to an earlier request on the same connection."""
MAX_CONNECTIONS = 1000
OTHER_FILES = 64
"""Number of file descriptors reserved for anything but connections."""
HEAD_SECONDS = 10
"""Time limit for the head of a request, and for the first byte on a new connection."""
REST_SECONDS = 60
"""Time limit for the rest of a refused body."""
TAKE_SECONDS = 10
"""Time for which a client may stop receiving an answer that exceeds the system's buffers."""
KEEP_ALIVE_SECONDS = 75
"""Time limit between two requests on a connection."""


def connection_limits() -> tuple[int, int]:
    """Maximum number of connections, and of connections accepted at once. Both are well below the process's open-file
    limit, since up to four times the second number may be open briefly in addition to the first."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = MAX_CONNECTIONS * 2 if allowed == resource.RLIM_INFINITY else max(allowed - OTHER_FILES, 16)
    return min(files // 2, MAX_CONNECTIONS), min(files // 8, 128)


class BoundedHttp(HttpToolsProtocol):
    """HTTP protocol that refuses endless input outside bodies, which the parser would buffer, and closes idle
    connections. Above the connection limit, it closes the connection that has waited longest for its client."""

    _other_bytes = 0
    _body_bytes = 0
    _begun = False
    """True from the first byte of a request to the last byte of its body."""
    _seconds: float | None = None
    """Time limit of the client's next action, in seconds; None while the server is processing its request."""
    _timer: asyncio.TimerHandle | None = None
    since = math.inf
    """Loop time since which the server has been waiting for the client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_client()
        if len(self.connections) > connection_limits()[0]:
            open_ones: list[Any] = [one for one in self.connections if not one.transport.is_closing()]
            longest = min(open_ones, key=lambda one: one.since)
            longest.end(503 if longest is self else None, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._other_bytes = 0
        self._begun = True

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            raise ValueError("too many requests before an answer")
        self._await_client()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._begun = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_client()

    def data_received(self, data: bytes) -> None:
        self._body_bytes = 0
        super().data_received(data)
        self._other_bytes = max(0, self._other_bytes + len(data) - FRAMED_BYTES * self._body_bytes)
        if self._other_bytes > MAX_OTHER_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request, or what comes after its body, is too long.")
        self._await_client()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._await_client()

    def _await_client(self) -> None:
        """Set the time limit for what the server now waits for. The timer is not reset if the limit is unchanged."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.flow.write_paused:
            seconds: float | None = TAKE_SECONDS
        elif not answered:
            # The application has its own limit for reading a body.
            seconds = math.inf if self._begun else None
        elif self._begun and self.cycle is not None and self.cycle.scope is self.scope:
            seconds = REST_SECONDS
        else:
            seconds = HEAD_SECONDS if self._begun or self.cycle is None else KEEP_ALIVE_SECONDS
        if seconds == self._seconds:
            return
        if self._timer:
            self._timer.cancel()
        self._seconds, self._timer, self.since = seconds, None, math.inf
        if seconds is not None:
            self.since = self.loop.time()
            if seconds != math.inf:
                self._timer = self.loop.call_later(seconds, self._late, seconds)

    def _late(self, seconds: float) -> None:
        between = seconds == KEEP_ALIVE_SECONDS
        self.end(None if between else 408, f"the request did not come within {seconds:g} s")

    def end(self, status: int | None, reason: str) -> None:
        """Close the connection, with an answer unless `status` is None."""
        if status is not None and not self.transport.is_closing():
            retry = f"retry-after: {RETRY_SECONDS}\r\n" if status == 503 else ""
            body = f'{{"error":"{reason}"}}'
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + f"{head}{body}".encode())
        self.transport.close()
        # Data that the client does not receive would keep the connection open.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
