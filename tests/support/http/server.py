"""A server of a made-up servable on a socket, in a thread of the test process, and plain clients."""

import http.client
import os
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

from support.http.file_servables import COLUMNS, TABLE, open_fake
from support.http.oip import json_request

from pipeline.serving.http.admission import Admission
from pipeline.serving.http.current import Current
from pipeline.serving.http.request import probe
from pipeline.serving.http.server import HttpServer, bind

ROOT = Path(__file__).parents[3]
INFER = "/v2/models/fake/infer"
BODY = json_request(TABLE, COLUMNS)


@contextmanager
def running(folder, opener=open_fake, max_requests=16, max_bytes=1 << 20, deadline=5.0, threads=2):
    """Yield the port of a server in a thread. Leaves no threads behind."""
    before = set(threading.enumerate())
    current = Current(folder, opener, probe)
    bound, ready = bind("127.0.0.1", 0), threading.Event()
    server = HttpServer(current, Admission(max_requests, max_bytes), deadline, threads, ready.set)
    thread = threading.Thread(target=server.run_until_stopped, args=(bound,))
    port = bound.getsockname()[1]
    thread.start()
    try:
        assert ready.wait(10)
        yield port
    finally:
        server.stop("test")
        thread.join(20)
        current.close()
    assert not thread.is_alive()
    assert set(threading.enumerate()) <= before


def post(port, body=BODY, path=INFER, **headers):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return reply.status, reply.read()


def raw(port, sent, shut=True):
    """Everything that the server sends in response to these bytes until it closes the connection. `shut`: close the
    sending side after the request."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        if shut:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def child(folder, *flags, **options):
    """Start the command, with the tests' servables, in a process. Returns the process and, when it is ready, its
    port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.http.file_servables", str(folder), "--port", "0", *flags],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}, **options,
    )  # fmt: skip
    line = process.stdout.readline()
    assert line.startswith("serving fake (1) on http://127.0.0.1:"), line + process.stderr.read()
    return process, int(line.rsplit(":", 1)[1])
