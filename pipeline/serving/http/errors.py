"""Errors that are the answer to one request."""

from __future__ import annotations


class RequestError(Exception):
    """A request that gets no scores: the HTTP status, and the reason, which names the field to change."""

    def __init__(self, status: int, reason: str, close: bool = False) -> None:
        """`close`: end the connection with the answer, since the rest of the request was not read."""
        super().__init__(reason)
        self.status = status
        self.close = close
