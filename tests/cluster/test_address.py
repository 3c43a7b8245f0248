"""Address of the dashboard."""

import errno
import socket

import pytest

from pipeline.cluster.address import free_address


def test_ports_that_are_all_taken_are_refused(monkeypatch):
    def taken(address):
        raise OSError(errno.EADDRINUSE, "taken")

    monkeypatch.setattr(socket, "create_server", taken)
    with pytest.raises(ValueError, match="ports 8787 to 8806 are taken; name another, or 0 for any"):
        free_address("8787", print)
