"""Checks of who may reach a server on this machine, and under which names. A foreign web page can make its own host
name resolve to 127.0.0.1 (DNS rebinding); a local browser then sends the page's requests, with that host name, to a
server that listens only on loopback."""

from __future__ import annotations

import ipaddress
import os
import socket
from urllib.parse import urlsplit

ALLOW = "PIPELINE_ALLOW_HOSTS"
"""Environment variable with additional host names, separated by commas."""


def warning_of(option: str, host: str, what: str) -> str | None:
    """Return a warning if a server listens on an address that other machines may reach, else None. `option`: the option
    that set the address; `what`: what anyone who reaches the server can do."""
    if _is_loopback(host):
        return None
    return (
        f"warning: {option}: whoever can reach this address, even from another machine, {what}, without a password; to "
        "keep others out, listen on 127.0.0.1 and forward the port (ssh -L)"
    )


def refused_host(host: str, bound: str) -> str | None:
    """Reason to refuse a request with this Host header ("" if it has none), or None. `bound`: address on which the
    server listens; unless that is loopback, every name is accepted, since a page needs no trick to reach the server."""
    name = _name(f"//{host}")
    known = {"localhost", socket.gethostname().lower(), bound.lower(), *_allowed()}
    if not host or not _is_loopback(bound) or name in known or _is_address(name):
        return None
    return f"Host: {host[:80]!r} is not a name of this machine; the environment variable {ALLOW}=NAME,... allows more"


def refused_page(origin: str | None, host: str, bound: str) -> str | None:
    """Like `refused_host`; for a server on loopback, also refuses requests from pages of another origin."""
    return refused_host(host, bound) or (refused_origin(origin, host) if _is_loopback(bound) else None)


def refused_origin(origin: str | None, host: str) -> str | None:
    """Reason to refuse a request from a page of this origin, or None. Only pages of the same server, or of allowed
    hosts, are accepted."""
    if origin is None or origin.lower().partition("://")[2] == host.lower() or _name(origin) in _allowed():
        return None
    return f"Origin: {origin[:80]!r} is another server; the environment variable {ALLOW}=NAME,... allows it"


def _allowed() -> list[str]:
    return [name.strip().lower() for name in os.environ.get(ALLOW, "").split(",") if name.strip()]


def _name(url: str) -> str:
    """Host of a URL without its port; "" if the URL has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    # A page cannot redirect an IP address to another one.
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(bound: str) -> bool:
    return bound == "localhost" or (_is_address(bound) and ipaddress.ip_address(bound).is_loopback)
