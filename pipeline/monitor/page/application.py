"""The page of a run as a web application."""

from __future__ import annotations

from pathlib import Path

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.server.tornado import BokehTornado

from pipeline.monitor.page.page import page

UNUSED_MILLISECONDS = 10_000
"""Time for which a page is kept up to date after its browser disconnects."""


def page_application(run_dir: Path, path: str = "/") -> BokehTornado:
    """Tornado application with the page of a run at `path`; the server's `guard` decides who may connect."""

    def fill(document: Document) -> None:
        page(run_dir, document)

    return BokehTornado(
        {path: Application(FunctionHandler(fill))},
        use_index=False,
        extra_websocket_origins=["*"],
        check_unused_sessions_milliseconds=UNUSED_MILLISECONDS,
        unused_session_lifetime_milliseconds=UNUSED_MILLISECONDS,
    )
