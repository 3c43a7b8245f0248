"""Limits of what is in flight: a request over them is refused before its body is read."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterator
from contextlib import contextmanager

from pipeline.messages.sizes import format_size_down, format_size_up

RETRY_SECONDS = 1
"""Value of Retry-After: by then, what is in flight has been answered or has passed its deadline."""


class RequestError(Exception):
    """A request that gets no scores: the HTTP status, and the reason, which names the field to change."""

    def __init__(self, status: int, reason: str, close: bool = False) -> None:
        """`close`: end the connection with the answer, since the rest of the request was not read."""
        super().__init__(reason)
        self.status = status
        self.close = close


class Admission:
    """Requests and bytes of bodies in flight. Only the thread of the event loop may use it."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.num_bytes = 0

    @contextmanager
    def place(self, num_bytes: int) -> Iterator[Place]:
        """Make room for a request whose body has this many bytes, as far as it says. What has not come takes none.

        Raises RequestError: 413 if no such body is ever admitted, 503 if there is no room for it at present.
        """
        place = Place(self)
        self.check()
        place.check(num_bytes)
        try:
            yield place
        finally:
            self.requests -= place.is_whole
            self.num_bytes -= place.num_bytes

    def check(self) -> None:
        """Raises RequestError if there is no room for one more request whose body has come."""
        if self.requests >= self.max_requests:
            raise RequestError(503, f"{self.requests} requests are in flight, as many as may be (--max-requests)")


class Place:
    """Share of one request in the limits."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.num_bytes = 0
        """Number of bytes that have come."""
        self.is_whole = False
        """True once the body has come, so that the request counts."""

    def check(self, num_bytes: int, unread: bool = False) -> None:
        """Raises RequestError, 413 or 503, if there is no room for so many bytes more. `unread`: nobody
        knows how much of the body is still to come, so the connection ends with the answer."""
        limit, used = self._admission.max_bytes, self._admission.num_bytes
        if self.num_bytes + num_bytes > limit:
            size = format_size_up(self.num_bytes + num_bytes)
            reason = f"the body has {size} or more, and at most {format_size_down(limit)} is taken (--max-bytes)"
            raise RequestError(413, f"{reason}; divide the rows among several requests", unread)
        if used + num_bytes > limit:
            sizes = f"{format_size_up(used)} are in flight, and {format_size_up(num_bytes)} more would exceed"
            raise RequestError(503, f"bodies of {sizes} {format_size_down(limit)} (--max-bytes)", unread)

    async def read(self, pieces: AsyncIterable[bytes], came: Callable[[], None]) -> bytes:
        """Read a body, and count it; `came` is called after each piece. Raises RequestError if there is no room for it,
        or for the request once it is whole."""
        found: list[bytes] = []
        async for piece in pieces:
            self.check(len(piece), unread=True)
            self.num_bytes += len(piece)
            self._admission.num_bytes += len(piece)
            found.append(piece)
            came()
        self._admission.check()
        self.is_whole = True
        self._admission.requests += 1
        return b"".join(found)
