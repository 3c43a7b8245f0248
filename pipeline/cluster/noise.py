"""Log records of lost connections: Dask's coroutines fail with a process that was killed or stood still, and asyncio
would log, with a traceback, each one that nobody awaits. The driver reports a lost worker in one line."""

from __future__ import annotations

import logging

CONNECTIONS = ("distributed.", "tornado.")
"""Packages whose exceptions mean a connection that broke."""


def silence_lost_connections() -> None:
    """Keep asyncio from logging exceptions of broken connections in this process. May be called twice."""
    logging.getLogger("asyncio").addFilter(_is_no_lost_connection)


def _is_no_lost_connection(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not kind.__module__.startswith(CONNECTIONS)
