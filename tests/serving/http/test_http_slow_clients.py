"""Clients that say nothing, too little, or take nothing keep nobody out, and honest ones that are slow are answered."""

import resource
import socket
import time
from contextlib import ExitStack, suppress

import pytest
from support.http.file_servables import Fake, write_fake
from support.http.server import BODY, INFER, child, post, raw, running

from pipeline.serving.http import app, protocol

HEAD = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ".encode()


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    for name, seconds in (("HEAD_SECONDS", 0.3), ("REST_SECONDS", 0.4), ("TAKE_SECONDS", 0.5)):
        monkeypatch.setattr(protocol, name, seconds)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(protocol, "connection_limits", lambda: (8, 4))


@pytest.fixture
def opened():
    """Function that opens a connection and sends something, and leaves it open until the end of the test."""
    with ExitStack() as stack:

        def connect(port, sent=b""):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            connection.sendall(sent)
            return connection

        yield connect


def ended(connection):
    """True if the server has ended the connection."""
    connection.setblocking(False)
    with suppress(ConnectionResetError):
        try:
            return not connection.recv(1)
        except BlockingIOError:
            return False
    return True


def said(connection):
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_silent_connections_give_way_to_a_client_that_asks(tmp_path, few, opened, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 60)
    with running(write_fake(tmp_path), deadline=1) as port:
        silent = [opened(port, sent) for sent in 10 * (b"", b"POST /v2", HEAD + b"9\r\n\r\n")]
        assert post(port)[0] == 200
        assert sum(map(ended, silent)) >= 30 - 8


def test_a_connection_beyond_those_that_work_gets_503(tmp_path, few, opened):
    with running(write_fake(tmp_path), lambda folder: Fake(seconds=0.8), max_requests=20, threads=20) as port:
        request = HEAD + b"%d\r\n\r\n" % len(BODY) + BODY
        working = [opened(port, request) for _ in range(8)]
        time.sleep(0.3)
        refused = said(opened(port))
        assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1\r\n" in refused
        assert all(connection.recv(12) == b"HTTP/1.1 200" for connection in working)


def test_a_head_that_does_not_come_ends_its_connection(tmp_path, opened):
    ask = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(write_fake(tmp_path)) as port:
        for connection in [opened(port, sent) for sent in (b"", b"GET /v2 HT", HEAD, b"\r\n", ask + b"GET")]:
            assert b"HTTP/1.1 408 Request Timeout\r\n" in said(connection)


def test_the_rest_of_a_refused_body_has_its_time(tmp_path, opened):
    with running(write_fake(tmp_path)) as port:
        connection = opened(port, HEAD.replace(b"fake", b"else") + b"900\r\n\r\n")
        for _ in range(2):
            time.sleep(0.25)
            connection.sendall(b"{")
        answers = said(connection)
        assert answers.startswith(b"HTTP/1.1 404 ")
        assert b"HTTP/1.1 408 " in answers


def test_half_bodies_keep_nobody_out(tmp_path, opened):
    with running(write_fake(tmp_path), max_requests=2, max_bytes=10_000, deadline=1) as port:
        for _ in range(4):
            opened(port, HEAD + b"9000\r\n\r\n{")
        assert post(port)[0] == 200


def test_a_slow_body_is_answered_while_more_of_it_comes(tmp_path, monkeypatch):
    def slow():
        for n in range(0, len(BODY), len(BODY) // 8):
            time.sleep(0.15)
            yield BODY[n : n + len(BODY) // 8]

    with running(write_fake(tmp_path), deadline=0.5) as port:
        assert post(port, slow())[0] == 200
        monkeypatch.setattr(app, "BODY_SECONDS", 0.4)
        with suppress(BrokenPipeError, ConnectionResetError):
            assert post(port, slow())[0] == 408


@pytest.mark.prove
def test_a_client_that_takes_no_answer_loses_its_connection(tmp_path, opened):
    # The answer says the name that is not known.
    ask = b"GET /v2/models/" + 60_000 * b"x" + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(write_fake(tmp_path)) as port:
        connection = opened(port)
        connection.settimeout(5)

        def ask_on():
            while True:
                connection.sendall(ask)
                # More requests at a time would be too many before an answer.
                time.sleep(0.01)

        with pytest.raises(ConnectionError):
            ask_on()


def test_requests_sent_ahead_are_bounded(tmp_path):
    ask = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(write_fake(tmp_path)) as port:
        last = ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert raw(port, 10 * ask + last, shut=False).count(b"HTTP/1.1 200 ") == 11
        assert b"HTTP/1.1 400 " in raw(port, 1000 * ask, shut=False)


def test_a_server_on_loopback_answers_to_names_of_its_machine(tmp_path):
    names = {"localhost:9": 200, "127.0.0.1": 200, "[::1]:8000": 200, socket.gethostname(): 200, "": 200,
             "evil.example": 403, "127.0.0.1.evil.example:80": 403, "[": 403}  # fmt: skip
    with running(write_fake(tmp_path)) as port:
        for host, status in names.items():
            assert raw(port, f"GET /v2 HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()).split()[1] == b"%d" % status, host


def test_a_page_of_another_server_is_refused(tmp_path):
    with running(write_fake(tmp_path)) as port:
        ours = f"http://localhost:{port}"
        for origin, status in ((ours, b"200"), ("https://evil.example", b"403"), ("null", b"403")):
            ask = f"GET /v2 HTTP/1.0\r\nHost: localhost:{port}\r\nOrigin: {origin}\r\n\r\n"
            assert raw(port, ask.encode()).split()[1] == status, origin


def test_a_name_that_is_allowed_is_answered(tmp_path, monkeypatch):
    ask = b"GET /v2 HTTP/1.1\r\nHost: Models.example:80\r\nConnection: close\r\n\r\n"
    with running(write_fake(tmp_path)) as port:
        assert b"PIPELINE_ALLOW_HOSTS" in raw(port, ask)
        monkeypatch.setenv("PIPELINE_ALLOW_HOSTS", "other, models.example")
        assert raw(port, ask).startswith(b"HTTP/1.1 200 ")


@pytest.mark.prove
def test_400_silent_clients_of_256_files_keep_nobody_out(tmp_path, opened):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    process, port = child(
        write_fake(tmp_path), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    )
    try:
        for _ in range(400):
            opened(port)
        seconds = -time.monotonic()
        for _ in range(20):
            assert post(port)[0] == 200
        seconds += time.monotonic()
    finally:
        process.terminate()
        err = process.communicate(timeout=30)[1]
    assert (err, seconds < 5) == ("", True)
