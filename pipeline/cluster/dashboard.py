"""Dask's dashboard, loaded when somebody first opens it: it imports bokeh, 0.5 s of the start of each process."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from distributed import Client, Nanny, Worker
from tornado import web

DASHBOARD_OPTIONS: dict[str, Any] = {
    "dashboard_address": "127.0.0.1:0",
    "worker_dashboard_address": "127.0.0.1:0",
    "scheduler_kwargs": {"dashboard": False},
}
"""Options of a LocalCluster whose servers listen on loopback and have no dashboard yet."""


class PlainWorker(Worker):
    """Worker in this process without a dashboard of its own: LocalCluster gives one to each worker with an address."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"dashboard": False})


class PlainNanny(Nanny):
    """The same for a worker in a process of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"dashboard": False})


class FirstVisit(web.RequestHandler):
    """Answer any page that the scheduler has not: mount the dashboard in place of this handler, and try again."""

    def initialize(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    async def get(self) -> None:
        dashboard = await asyncio.to_thread(import_module, "distributed.dashboard.scheduler")
        applications = self._scheduler.http_application.applications
        if self.application in applications:
            applications.remove(self.application)
            dashboard.connect(self._scheduler.http_application, self._scheduler.http_server, self._scheduler)
        self.redirect(self.request.uri or "/")


def mount(scheduler: Any) -> None:
    """Have the HTTP server of a scheduler in this process load the dashboard on demand."""
    scheduler.http_application.add_application(web.Application([(r".*", FirstVisit, {"scheduler": scheduler})]))


def dashboard_link(client: Client) -> str:
    """Address of the dashboard. Dask's own link has the machine's name, but the dashboard listens on loopback only."""
    cluster: Any = client.cluster
    return f"http://127.0.0.1:{cluster.scheduler.http_server.port}/status"
