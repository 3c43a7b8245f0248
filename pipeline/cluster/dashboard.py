"""Dask's dashboard, and next to it the page of a run, at /pipeline. Both need bokeh, whose import takes 0.5 s of the
start of each process, and are loaded when somebody first opens them.

Dask mounts its own dashboard in this way (`distributed.dashboard.core`), which is not documented: all that depends on
it is here.
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
    """Options of a LocalCluster whose servers have no dashboard yet. The scheduler's listens at `address` (see
    `free_address`), all others on loopback."""
    return {
        "dashboard_address": ANY_PORT if address == OFF else address,
        "worker_dashboard_address": ANY_PORT,
        "scheduler_kwargs": {"dashboard": False},
    }


class PlainWorker(Worker):
    """Worker without a dashboard; LocalCluster gives one to each worker that has an address."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"dashboard": False})

    def start_http_server(self, *args: Any, **options: Any) -> None:
        super().start_http_server(*args, **options)
        guard(self.http_server, str(self.http_server.address))


class PlainNanny(Nanny):
    """The same for a worker in a separate process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"dashboard": False, "worker_class": PlainWorker})


class FirstVisit(web.RequestHandler):
    """Answers any page until a module is loaded, at the first visit: puts what that has in place of this handler's
    application, and redirects there."""

    def initialize(self, scheduler: Any, module: str, place: Callable[[Any, list[Any], int], None]) -> None:
        """`place`: adds what the module has to a list of applications, at this place."""
        self._scheduler, self._module, self._place = scheduler, module, place

    async def get(self) -> None:
        module = await asyncio.to_thread(import_module, self._module)
        applications = self._scheduler.http_application.applications
        if self.application in applications:
            at = applications.index(self.application)
            del applications[at]
            self._place(module, applications, at)
        # Two slashes would lead to another server.
        self.redirect("/" + (self.request.uri or "").lstrip("/"))


def mount(scheduler: Any, address: str) -> None:
    """Have the HTTP server of a scheduler in this process load the dashboard on demand, unless `address` is "off", and
    give it limits."""
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
    """Host of a scheduler's HTTP server as a browser reaches it. Dask's own link has the machine's name, also of a
    server that listens on loopback only."""
    address = str(scheduler.http_server.address)
    return socket.gethostname() if address == "0.0.0.0" else address


class NotYet(web.Application):
    """Application in the place of the page's until that is loaded."""


def mount_page(client: Client, run_dir: Path) -> str | None:
    """Make the HTTP server of a scheduler in this process show a run on demand. Returns the page's link, or None if the
    dashboard is off. Replaces the page of an earlier run of the same scheduler."""
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

    # The dashboard answers whatever comes to it, so this one is asked before it.
    options = {"scheduler": scheduler, "module": "pipeline.monitor.page.application", "place": place}
    applications.insert(0, NotYet([(PAGE, FirstVisit, options)]))
    return f"http://{server_host(scheduler)}:{scheduler.http_server.port}{PAGE}"
