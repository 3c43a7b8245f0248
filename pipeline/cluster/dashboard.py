"""Dask's dashboard, and the page of a run on the same server, at /pipeline. Both need bokeh, which would add 0.5 s to
the start of each process, so they are loaded on the first visit.

Dask mounts its own dashboard in this way (`distributed.dashboard.core`). The mechanism is undocumented; all code that
depends on it is in this file.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from distributed import Client, Nanny, Worker
from tornado import web
from tornado.ioloop import IOLoop

from pipeline.cluster.address import ANY_PORT, OFF
from pipeline.monitor.page.guard import guard

PAGE = "/pipeline"


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
    """Answers any request until the first visit, which loads a module, replaces the application of this handler with
    that of the module, and redirects to it."""

    def initialize(self, scheduler: Any, module: str, place: Callable[[Any, list[Any], int], None]) -> None:
        """`place`: inserts the application of the module into a list of applications at an index."""
        self._scheduler, self._module, self._place = scheduler, module, place

    async def get(self) -> None:
        module = await asyncio.to_thread(import_module, self._module)
        applications = self._scheduler.http_application.applications
        if self.application in applications:
            at = applications.index(self.application)
            del applications[at]
            self._place(module, applications, at)
        # A path that starts with two slashes would redirect to another server.
        self.redirect("/" + (self.request.uri or "").lstrip("/"))


def mount(scheduler: Any, address: str) -> None:
    """Make the HTTP server of a scheduler in this process load the dashboard on demand, unless `address` is "off", and
    apply limits to the server."""
    guard(scheduler.http_server, str(scheduler.http_server.address))

    def place(dashboard: Any, applications: list[Any], at: int) -> None:
        dashboard.connect(scheduler.http_application, scheduler.http_server, scheduler)

    if address != OFF:
        options = {"scheduler": scheduler, "module": "distributed.dashboard.scheduler", "place": place}
        scheduler.http_application.add_application(web.Application([(r".*", FirstVisit, options)]))


def dashboard_link(client: Client) -> str | None:
    """Address of the dashboard; None if it is off."""
    cluster: Any = client.cluster
    server, application = cluster.scheduler.http_server, cluster.scheduler.http_application
    return f"http://{server_host(cluster.scheduler)}:{server.port}/status" if application.applications else None


def server_host(scheduler: Any) -> str:
    """Host of a scheduler's HTTP server for use in a browser. Dask's own link contains the machine name even if the
    server listens only on loopback."""
    address = str(scheduler.http_server.address)
    return socket.gethostname() if address == "0.0.0.0" else address


class NotYet(web.Application):
    """Placeholder for the application of the page until it is loaded."""


def mount_page(client: Client, run_dir: Path) -> str | None:
    """Make the HTTP server of a scheduler in this process show a run on demand. Returns the link to the page, or None
    if the dashboard is off. Replaces the page of an earlier run on the same scheduler."""
    scheduler = client.cluster.scheduler
    applications = scheduler.http_application.applications
    if not applications:
        return None
    applications[:] = [a for a in applications if not isinstance(a, NotYet) and PAGE not in getattr(a, "app_paths", ())]

    def place(loaded: Any, applications: list[Any], at: int) -> None:
        made = loaded.page_application(run_dir, PAGE)
        applications.insert(at, made)
        made.initialize(IOLoop.current())
        made.start()

    # The dashboard answers every request, so this application must come before it.
    options = {"scheduler": scheduler, "module": "pipeline.monitor.page.application", "place": place}
    applications.insert(0, NotYet([(PAGE, FirstVisit, options)]))
    return f"http://{server_host(scheduler)}:{scheduler.http_server.port}{PAGE}"
