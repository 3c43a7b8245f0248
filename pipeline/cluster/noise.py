"""Filter for log records of lost connections. When a process is killed or was paused, Dask's coroutines fail. asyncio
would log a traceback for each one that is not awaited, and Dask's scheduler a critical record when it sends to a client
that is gone. The driver reports a lost worker in one line."""

from __future__ import annotations

import logging

LOGGERS = ("asyncio", "distributed.scheduler")
"""Loggers that emit such records. A filter on a logger works with any handlers of the process."""
CONNECTIONS = ("distributed.", "tornado.")
"""Packages whose exceptions indicate a broken connection."""


def silence_lost_connections() -> None:
    """Stop asyncio and Dask from logging exceptions of broken connections in this process. May be called twice."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_no_lost_connection)


def _is_no_lost_connection(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not kind.__module__.startswith(CONNECTIONS)
