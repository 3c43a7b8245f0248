"""Dask's dashboard. It needs bokeh, which would add 0.5 s to the start of each process, so it is loaded on the first
visit, as Dask loads it at the start (`distributed.dashboard.core`); how to do so is undocumented."""

from __future__ import annotations

import asyncio
import resource
import socket
from importlib import import_module
from typing import Any

from distributed import Client, Nanny, Worker
from tornado import web
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.iostream import IOStream
from tornado.routing import Router

from pipeline.cluster.address import ANY_PORT, OFF
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


def dashboard_options(address: str) -> dict[str, Any]:
    """Options of a LocalCluster with servers that have no dashboard yet. The scheduler's server listens on `address`
    (see `free_address`), all others on loopback."""
    return {
        "dashboard_address": ANY_PORT if address == OFF else address,
        "worker_dashboard_address": ANY_PORT,
        "scheduler_kwargs": {"dashboard": False},
    }


class PlainWorker(Worker):
    """Worker without a dashboard; by default, LocalCluster adds one to each worker that has an address."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"dashboard": False})

    def start_http_server(self, *args: Any, **options: Any) -> None:
        super().start_http_server(*args, **options)
        guard(self.http_server, str(self.http_server.address))


class PlainNanny(Nanny):
    """Same as `PlainWorker`, for a worker in a separate process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"dashboard": False, "worker_class": PlainWorker})


class FirstVisit(web.RequestHandler):
    """Answers any request until the first visit, which loads the dashboard, puts it in the place of the application of
    this handler, and redirects to it."""

    def initialize(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    async def get(self) -> None:
        dashboard = await asyncio.to_thread(import_module, "distributed.dashboard.scheduler")
        http, applications = self._scheduler.http_application, self._scheduler.http_application.applications
        if self.application in applications:
            applications.remove(self.application)
            dashboard.connect(http, self._scheduler.http_server, self._scheduler)
        # A path that starts with two slashes would redirect to another server.
        self.redirect("/" + (self.request.uri or "").lstrip("/"))


def mount(scheduler: Any, address: str) -> None:
    """Make the HTTP server of a scheduler in this process load the dashboard on demand, unless `address` is "off", and
    apply limits to the server."""
    guard(scheduler.http_server, str(scheduler.http_server.address))
    if address != OFF:
        scheduler.http_application.add_application(web.Application([(r".*", FirstVisit, {"scheduler": scheduler})]))


def dashboard_link(client: Client) -> str | None:
    """Address of the dashboard; None if it is off."""
    scheduler: Any = client.cluster.scheduler
    if not scheduler.http_application.applications:
        return None
    # Dask's own link contains the machine name even if the server listens only on loopback.
    address = str(scheduler.http_server.address)
    host = socket.gethostname() if address == "0.0.0.0" else address
    return f"http://{host}:{scheduler.http_server.port}/status"
