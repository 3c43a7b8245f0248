"""Dask's HTTP servers answer this machine's user alone, and silent clients take none of a run's files."""

import socket
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from pipeline.cluster import dashboard as servers
from pipeline.cluster.dashboard import dashboard_link
from pipeline.cluster.local import InProcessCluster, local_client


def read(link):
    with urlopen(link, timeout=30) as answer:
        return answer.read().decode()


def asked(link, **headers):
    """Status of the answer to a request with these headers."""
    address = urlsplit(link)
    with closing(HTTPConnection(address.hostname, address.port, timeout=30)) as connection:
        connection.request("GET", address.path, headers=headers)
        return connection.getresponse().status


UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip


@pytest.mark.prove
def test_pages_of_other_servers_get_nothing_from_dasks_servers():
    with local_client() as client:
        port = InProcessCluster(client).worker.http_server.port
        dashboard = dashboard_link(client)
        assert "<html" in read(dashboard)
        for link, upgrade in [(dashboard, {}), (f"{dashboard}/ws", UPGRADE),
                              (dashboard.replace("status", "json/counts.json"), {}),
                              (f"http://127.0.0.1:{port}/health", {})]:  # fmt: skip
            own = urlsplit(link).netloc
            here, evil = own.replace("127.0.0.1", "localhost"), own.replace("127.0.0.1", "evil.example")
            answers = {asked(link, **upgrade), asked(link, **upgrade, Host=here, Origin=f"http://{here}")}
            assert answers == {101 if upgrade else 200}
            assert asked(link, **upgrade, Host=evil) == 403
            for origin in (f"http://{evil}", "null"):
                assert asked(link, **upgrade, Origin=origin) == 403


def test_silent_clients_leave_a_runs_files_alone(monkeypatch):
    monkeypatch.setattr(servers, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(servers, "IDLE_SECONDS", 0.5)
    with local_client() as client, ExitStack() as stack:
        link = dashboard_link(client)
        address = ("127.0.0.1", urlsplit(link).port)
        silent = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(60)]
        assert sum(one.recv(12) == b"HTTP/1.1 503" for one in silent) >= 40
        assert asked(link) == 302
