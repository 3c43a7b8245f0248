"""The page of a run on the HTTP server of Dask's scheduler, at /pipeline, loaded when somebody first opens it.

Dask mounts its own dashboard in this way (`distributed.dashboard.core`), which is not documented: all that depends on
it is here.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

from distributed import Client
from tornado import web
from tornado.ioloop import IOLoop

from pipeline.cluster.dashboard import server_host

PAGE = "/pipeline"


class NotYet(web.Application):
    """Application in the place of the page's until that is loaded."""


class FirstPage(web.RequestHandler):
    """Answer the first visit: put the page's application in place of this one, and try again."""

    def initialize(self, scheduler: Any, run_dir: Path) -> None:
        self._scheduler, self._run_dir = scheduler, run_dir

    async def get(self) -> None:
        loaded = await asyncio.to_thread(import_module, "pipeline.monitor.page.application")
        applications = self._scheduler.http_application.applications
        if self.application in applications:
            made = loaded.page_application(self._run_dir, PAGE)
            applications[applications.index(self.application)] = made
            made.initialize(IOLoop.current())
            made.start()
        self.redirect(self.request.uri or PAGE)


def mount_page(client: Client, run_dir: Path) -> str | None:
    """Have the HTTP server of a scheduler in this process show a run on demand, and return the page's link; None if the
    dashboard is off. The page of an earlier run of the same scheduler goes."""
    scheduler = client.cluster.scheduler
    applications = scheduler.http_application.applications
    if not applications:
        return None
    applications[:] = [a for a in applications if not isinstance(a, NotYet) and PAGE not in getattr(a, "app_paths", ())]
    # The dashboard answers whatever comes to it, so this one is asked before it.
    applications.insert(0, NotYet([(PAGE, FirstPage, {"scheduler": scheduler, "run_dir": run_dir})]))
    return f"http://{server_host(scheduler)}:{scheduler.http_server.port}{PAGE}"
