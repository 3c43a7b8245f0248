"""Log records of lost connections: Dask's coroutines fail with a process that was killed or did not run. asyncio would
log, with a traceback, each one that nobody awaits, and so does Dask's scheduler, as critical, when it sends to a client
that is gone. The driver reports a lost worker in one line."""

from __future__ import annotations

import logging

LOGGERS = ("asyncio", "distributed.scheduler")
"""Loggers that such records come from. A filter on one of them holds with whatever handlers the process has."""
CONNECTIONS = ("distributed.", "tornado.")
"""Packages whose exceptions mean a connection that broke."""


def silence_lost_connections() -> None:
    """Keep asyncio and Dask from logging exceptions of broken connections in this process. May be called twice."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_no_lost_connection)


def _is_no_lost_connection(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not kind.__module__.startswith(CONNECTIONS)
