"""Listen address of the Dask dashboard of a run, checked before Dask starts."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from pipeline.machine.hosts import warning_of

OFF = "off"
ANY_PORT = "127.0.0.1:0"
NEXT_PORTS = 20
"""Maximum number of ports tried."""


def free_address(wanted: str, say: Callable[[str], None]) -> str:
    """Return HOST:PORT for `wanted`: a loopback port, HOST:PORT, :PORT for all addresses of this machine, or "off",
    which is returned unchanged. If the port is taken, the next free one is used. `say`: called with a note of that
    port, and with a warning if other machines can reach the address. Raises ValueError if the address is invalid or
    this machine cannot listen on it."""
    if wanted == OFF:
        return OFF
    host, colon, number = wanted.rpartition(":")
    if not (number.isascii() and number.isdigit() and int(number) < 1 << 16):
        raise ValueError(
            f"--dashboard {wanted}: expected a port such as 8787 (for this machine only), HOST:PORT, :PORT (all "
            "addresses of this machine), or off"
        )
    host = host or ("0.0.0.0" if colon else "127.0.0.1")
    for port in range(first := int(number), min(first + NEXT_PORTS, 1 << 16)):
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise ValueError(
                f"--dashboard {wanted}: this machine cannot listen there: {error.strerror}; give a port of at least "
                f"1024, and a host of this machine, such as 127.0.0.1:{max(first, 8787)}"
            ) from error
        if port != first:
            say(f"port {first} is taken: the dashboard listens on port {port}")
        if warning := warning_of(f"--dashboard {wanted}", host, "sees the run and its files' names"):
            say(warning)
        return f"{host}:{port}"
    raise ValueError(f"--dashboard {wanted}: ports {first} to {port} are taken; name another, or 0 for any")
