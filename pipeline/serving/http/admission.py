"""Limits on requests and bytes in flight. A request over a limit is refused before its body is read."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager

from pipeline.messages.sizes import format_size_down, format_size_up

RETRY_SECONDS = 1
"""Value of Retry-After: by then, requests in flight have been answered or have passed their deadline."""


class RequestError(Exception):
    """A request that gets no scores, with the HTTP status and a reason that names the field to change."""

    def __init__(self, status: int, reason: str, close: bool = False) -> None:
        """`close`: close the connection after the answer, since the rest of the request was not read."""
        super().__init__(reason)
        self.status = status
        self.close = close


class Admission:
    """Number of requests and bytes of bodies in flight. Only the event loop's thread may use it."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        """Number of requests whose body has arrived."""
        self.num_bytes = 0

    @asynccontextmanager
    async def read(
        self, announced: int, pieces: AsyncIterable[bytes], came: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Read a body of `announced` bytes (0 if unknown), and count it until the context exits. Bytes count from their
        arrival. `came` is called after each piece.

        Raises RequestError: 413 if the body is too large to be ever admitted, 503 if there is currently no room for the
        body or the request.
        """
        self._check_requests()
        self._check_bytes(0, announced)
        found: list[bytes] = []
        num_bytes, is_whole = 0, False
        try:
            async for piece in pieces:
                # The size of the rest is unknown, so the connection is closed after the answer.
                self._check_bytes(num_bytes, len(piece), close=True)
                num_bytes += len(piece)
                self.num_bytes += len(piece)
                found.append(piece)
                came()
            self._check_requests()
            self.requests += 1
            is_whole = True
            yield b"".join(found)
        finally:
            self.requests -= is_whole
            self.num_bytes -= num_bytes

    def _check_requests(self) -> None:
        if self.requests >= self.max_requests:
            raise RequestError(503, f"{self.requests} requests are in flight, which is the limit (--max-requests)")

    def _check_bytes(self, come: int, more: int, close: bool = False) -> None:
        """Raises RequestError if there is no room for `more` bytes of a body after the `come` that have arrived."""
        limit = format_size_down(self.max_bytes)
        if come + more > self.max_bytes:
            reason = f"the body has {format_size_up(come + more)} or more, and the maximum is {limit} (--max-bytes)"
            raise RequestError(413, f"{reason}; divide the rows among several requests", close)
        if self.num_bytes + more > self.max_bytes:
            sizes = f"{format_size_up(self.num_bytes)} are in flight, and {format_size_up(more)} more would exceed"
            raise RequestError(503, f"bodies of {sizes} {limit} (--max-bytes)", close)
