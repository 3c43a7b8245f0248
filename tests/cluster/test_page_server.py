"""The page of a run on Dask's server."""

import socket
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from support.runs.live_lines import quickstart

from pipeline.cluster.address import OFF
from pipeline.cluster.dashboard import dashboard_link, mount_page
from pipeline.cluster.local import InProcessCluster, local_client
from pipeline.monitor.page import guard


def read(link):
    with urlopen(link, timeout=30) as answer:
        return answer.read().decode()


def test_the_page_loads_at_its_first_visit_next_to_the_dashboard(tmp_path):
    with local_client() as client:
        mount_page(client, tmp_path / "earlier")
        link = mount_page(client, quickstart().write(tmp_path / "run"))
        applications = client.cluster.scheduler.http_application.applications
        assert [type(application).__name__ for application in applications] == ["NotYet", "Application"]
        for _ in range(2):
            assert "run - pipeline" in read(link)
        assert "Dask" in read(dashboard_link(client))
        assert "run - pipeline" in read(link)
        assert [type(application).__name__ for application in applications] == ["BokehTornado", "DaskBokehTornado"]


def asked(link, **headers):
    """Status of the answer to a request with these headers."""
    address = urlsplit(link)
    with closing(HTTPConnection(address.hostname, address.port, timeout=30)) as connection:
        connection.request("GET", address.path, headers=headers)
        return connection.getresponse().status


UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip


@pytest.mark.prove
def test_pages_of_other_servers_get_nothing_from_dasks_servers(tmp_path):
    with local_client() as client:
        port = InProcessCluster(client).worker.http_server.port
        page, dashboard = mount_page(client, quickstart().write(tmp_path / "run")), dashboard_link(client)
        for link in (page, dashboard):
            assert "<html" in read(link)
        for link, upgrade in [(page, {}), (dashboard, {}), (f"{page}/ws", UPGRADE), (f"{dashboard}/ws", UPGRADE),
                              (dashboard.replace("status", "json/counts.json"), {}),
                              (f"http://127.0.0.1:{port}/health", {})]:  # fmt: skip
            own = urlsplit(link).netloc
            here, evil = own.replace("127.0.0.1", "localhost"), own.replace("127.0.0.1", "evil.example")
            answers = {asked(link, **upgrade), asked(link, **upgrade, Host=here, Origin=f"http://{here}")}
            assert answers == {101 if upgrade else 200}
            assert asked(link, **upgrade, Host=evil) == 403
            for origin in (f"http://{evil}", "null"):
                assert asked(link, **upgrade, Origin=origin) == 403


def test_silent_clients_leave_a_runs_files_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "MAX_CONNECTIONS_OF_PAGES", 20)
    monkeypatch.setattr(guard, "IDLE_SECONDS", 0.5)
    with local_client() as client, ExitStack() as stack:
        link = mount_page(client, quickstart().write(tmp_path / "run"))
        address = ("127.0.0.1", urlsplit(link).port)
        silent = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(60)]
        assert sum(one.recv(12) == b"HTTP/1.1 503" for one in silent) >= 40
        assert asked(link) == 302


def test_a_run_without_a_dashboard_has_no_page(tmp_path):
    with local_client(OFF) as client:
        assert mount_page(client, tmp_path) is None
