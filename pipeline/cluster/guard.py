"""Limits of the HTTP servers of Dask: who may connect, how many clients at once, and how long a client may be
silent."""

from __future__ import annotations

import resource
from typing import Any

from tornado import web
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.iostream import IOStream
from tornado.routing import Router

from pipeline.machine.hosts import refused_host, refused_origin

IDLE_SECONDS = 10
"""Time limit for the head of a request, and for its body. The open WebSocket of a dashboard has no such limit."""
MAX_CONNECTIONS = 200
MAX_SHARE_OF_FILES = 0.75
"""Share of the open-file limit above which connections are refused, since a run needs files too."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def guard(server: Any, bound: str) -> None:
    """Set the limits of a Tornado HTTP server. `bound`: address that it listens on."""
    take = server.handle_stream

    def take_some(stream: IOStream, address: Any) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # The system assigns the lowest free number, so a high one means that many files are open.
        scarce = files > 0 and stream.socket.fileno() >= MAX_SHARE_OF_FILES * files
        if scarce or len(server._connections) >= MAX_CONNECTIONS:
            stream.write(BUSY)
            stream.close()
        else:
            take(stream, address)

    server.handle_stream = take_some
    server.conn_params.header_timeout = server.conn_params.body_timeout = IDLE_SECONDS
    server.request_callback = _Guarded(server.request_callback, bound)


class _Guarded(Router):
    """Router that refuses requests from the pages of other servers."""

    def __init__(self, application: web.Application, bound: str) -> None:
        self._application, self._bound = application, bound
        self._refusing = web.Application()

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> HTTPMessageDelegate | None:
        host = request.headers.get("Host", "")
        why = refused_host(host, self._bound) or refused_origin(request.headers.get("Origin"), host)
        if why:
            return self._refusing.get_handler_delegate(request, _Refusal, {"why": why})
        return self._application.find_handler(request, **kwargs)


class _Refusal(web.RequestHandler):
    def initialize(self, why: str) -> None:
        self._why = why

    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{self._why}\n")
