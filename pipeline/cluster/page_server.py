"""The page of a run on the HTTP server of Dask's scheduler, at /pipeline, loaded when somebody first opens it.

Dask mounts its own dashboard in this way (`distributed.dashboard.core`), which is not documented: all that depends on
it is here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distributed import Client
from tornado import web
from tornado.ioloop import IOLoop

from pipeline.cluster.dashboard import FirstVisit, server_host

PAGE = "/pipeline"


class NotYet(web.Application):
    """Application in the place of the page's until that is loaded."""


def mount_page(client: Client, run_dir: Path) -> str | None:
    """Have the HTTP server of a scheduler in this process show a run on demand, and return the page's link; None if the
    dashboard is off. The page of an earlier run of the same scheduler goes."""
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
