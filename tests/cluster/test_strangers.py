"""Others on the machine: what listens while a run goes on gives them no code to run, no row, and none of its files."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit
from urllib.request import urlopen

import dask
import psutil
import pytest
from distributed import LocalCluster
from distributed.security import Security
from support.runs.slow_runs import ROOT, Job

from pipeline.cluster import dashboard as servers
from pipeline.cluster.address import free_address
from pipeline.cluster.crew import WorkerSpec
from pipeline.cluster.dashboard import dashboard_link
from pipeline.cluster.local import InProcessCluster, local_client
from pipeline.cluster.pool import NoWorkers, WorkerPool
from pipeline.machine.hosts import warning_of

STRANGER = '''
import asyncio, json, os, pickle, socket, ssl, sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import urlopen
from distributed.core import rpc
from distributed.security import Security

os.setgroups([])
os.setgid(65534)
os.setuid(65534)

PATHS = ("", "status", "pipeline", "metrics", "health", "info/main/workers.html", "json/counts.json", "api/v1/workers")


def over_http(port):
    """Whether it answers, and all that it says."""
    said = b""
    for path in PATHS:
        try:
            with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
                said += answer.read()
        except HTTPError as error:
            said += error.read()
        except (OSError, HTTPException) as error:
            if isinstance(error, TimeoutError):
                raise
            return None
    return said.decode(errors="replace")


async def run_there(port, protocol, operation):
    security = Security.temporary() if protocol == "tls" else Security()
    there = rpc(f"{protocol}://127.0.0.1:{port}", connection_args=security.get_connection_args("client"), timeout=20)
    asked = {"function": pickle.dumps(os.getpid)} if operation == "run" else {}
    try:
        return str(await asyncio.wait_for(getattr(there, operation)(**asked), 20))
    except Exception as error:
        return None
    finally:
        await there.close_rpc()


def is_silent(port):
    """Whether it accepts bytes that are no request, and neither answers nor ends the connection."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        plain.sendall(b"\\r\\n" * 4)
        try:
            plain.recv(1)
        except TimeoutError:
            return True
        except ConnectionResetError:
            pass
        return False


def is_closed(port):
    """Whether the server speaks TLS, and ends the connection of a client without a certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 20) as plain:
        try:
            wrapped = context.wrap_socket(plain)
        except ssl.SSLError as error:
            return "CERTIFICATE" in str(error)
        try:
            return wrapped.recv(1) == b""
        except (ssl.SSLError, ConnectionResetError):
            return True


ports = [*map(int, sys.argv[1:])]
with ThreadPoolExecutor(len(ports)) as threads:
    silent = [port for port, is_so in zip(ports, threads.map(is_silent, ports)) if is_so]
found = {}
for port in ports:
    if port in silent:
        continue
    http = over_http(port)
    found[port] = {"http": http, "answers": [], "closed": http is None and is_closed(port)}
    for protocol in ("tcp", "tls") if http is None else ():
        for operation in ("identity", "run"):
            found[port]["answers"].append(asyncio.run(run_there(port, protocol, operation)))
print(json.dumps([found, silent]))
'''
"""Program of another user, which asks each port for code to run, and for all it has over HTTP."""


def ports_of(process: psutil.Process) -> set[int]:
    found = set()
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            found |= {at.laddr.port for at in one.net_connections("tcp") if at.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.prove
@pytest.mark.parametrize(
    ("flags", "num_closed", "num_silent"), [((), 0, 0), (("--workers", "2"), 5, 4)], ids=["one", "two"]
)
def test_another_user_reaches_no_code_and_no_row_of_a_run(tmp_path, flags, num_closed, num_silent):
    """A port is HTTP, which has no row and runs nothing, or asks for a key that only the run's processes have (those of
    scheduler, two workers and their two nannies), or is one of gloo's, two for each worker: once the workers are
    connected, these answer nobody."""
    if os.geteuid():
        pytest.skip("only root can act as another user")
    with Job(tmp_path).start(tmp_path / "run", *flags, slow=0.4) as run:
        run.says("examples")
        ports = ports_of(psutil.Process(run.process.pid))
        done = subprocess.run(
            [sys.executable, "-c", STRANGER, *map(str, ports)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert not run.ended(), run.said[-3000:]
    found, silent = json.loads(done.stdout)
    assert len(silent) == num_silent
    assert len(found) == len(ports) - num_silent >= 2
    assert [port for port, of_port in found.items() if any(of_port["answers"])] == []
    assert [port for port, of_port in found.items() if of_port["http"] is None and not of_port["closed"]] == []
    assert sum(of_port["closed"] for of_port in found.values()) == num_closed
    pages = " ".join(of_port["http"] or "" for of_port in found.values())
    assert "bokeh" in pages.lower(), "nothing was read"
    assert not re.search(r"[\"'> ]c17[\"'< ]", pages), "the page has a value of column country"


def test_a_scheduler_with_tls_is_used_with_dasks_own_settings(tmp_path):
    made, settings = Security.temporary(), {}
    files = {"ca-file": made.tls_ca_file, "cert": made.tls_client_cert, "key": made.tls_client_key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        for role in ("client.", "scheduler.", "worker.") if name != "ca-file" else ("",):
            settings[f"distributed.comm.tls.{role}{name}"] = str(tmp_path / name)
    with (
        dask.config.set(settings),
        LocalCluster(
            1, threads_per_worker=1, processes=False, protocol="tls", host="127.0.0.1",
            dashboard_address="127.0.0.1:0", security=Security(),
        ) as cluster,
    ):  # fmt: skip
        spec = WorkerSpec(1, cluster.scheduler_address)
        with closing(WorkerPool(spec)) as pool:
            assert pool.addresses[0].startswith("tls://127.0.0.1:")
        with dask.config.set({"distributed.comm.tls.client.cert": None}), pytest.raises((NoWorkers, TypeError)):
            WorkerPool(spec)


@pytest.mark.parametrize(
    ("host", "warns"),
    [("127.0.0.1", False), ("127.8.8.8", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True),
     ("192.168.0.7", True), ("", True), ("node7", True)],
)  # fmt: skip
def test_an_address_that_other_machines_reach_is_warned_of(host, warns):
    assert bool(warning_of("--address", host, "sees it")) == warns


def test_a_dashboard_for_other_machines_is_warned_of():
    said = []
    assert free_address(":0", said.append) == "0.0.0.0:0"
    assert free_address("0", said.append) == "127.0.0.1:0"
    assert [line.split(", even")[0] for line in said] == ["warning: --dashboard :0: whoever can reach this address"]


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
