"""Listening beyond this machine, which is said to the user."""

from __future__ import annotations

import ipaddress


def warning_of(option: str, host: str, what: str) -> str | None:
    """Return a warning if a server listens at an address that other machines may reach; None if only this one does.
    `option`: what put it there; `what`: what whoever reaches it can do."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if local:
        return None
    return (
        f"warning: {option}: whoever reaches this address, also from another machine, {what}, without a password; for "
        "yourself alone, listen at 127.0.0.1 and forward the port (ssh -L)"
    )
