"""A server on a socket: an unmodified client, connections that are cut, signals, and the command."""

import http.client
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from support.depth import some
from support.http.file_servables import COLUMNS, OUTPUTS, TABLE, open_fake, publish, scores_of, write_fake
from support.http.oip import binary_request, tensors_of
from support.http.server import BODY, INFER, child, post, raw, running

from pipeline.serving.http import server as server_module
from pipeline.serving.http.protocol import MAX_OTHER_BYTES
from pipeline.serving.serve import main


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        # A thread that looks at the folder now and then would seem to be left behind by another server.
        patch.setattr(server_module, "SWAP_SECONDS", 3600)
        with running(write_fake(tmp_path_factory.mktemp("served"), "3")) as port:
            yield port


@pytest.fixture
def client(port):
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        yield client


def numpy_of(datatype, values):
    if datatype == "BYTES":
        return np.array([(v or "").encode() for v in values], object)
    kind = {"FP32": np.float32, "UINT64": np.uint64, "INT64": np.int64, "INT32": np.int32, "BOOL": np.bool_}[datatype]
    return np.array([0 if v is None else v for v in values], kind)


def triton_inputs(table, binary):
    from tritonclient.http import InferInput

    for name, datatype, values in tensors_of(table, COLUMNS):
        for each, kind, filled in ((name, datatype, values), (f"{name}.null", "BOOL", [v is None for v in values])):
            tensor = InferInput(each, [len(filled)], kind)
            tensor.set_data_from_numpy(numpy_of(kind, filled), binary_data=binary)
            yield tensor


def test_an_unmodified_client_reads_the_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("fake")
    assert client.is_model_ready("fake", "3")
    assert not client.is_model_ready("fake", "4")
    assert client.get_server_metadata()["name"] == "pipeline"
    assert client.get_model_metadata("fake")["versions"] == ["3"]
    assert client.get_model_repository_index()[0]["state"] == "READY"


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("version", ["", "3"])
def test_an_unmodified_client_gets_the_scores(client, binary, version):
    from tritonclient.http import InferRequestedOutput

    outputs = [InferRequestedOutput(name, binary_data=binary) for name in OUTPUTS[::-1]]
    inputs = list(triton_inputs(TABLE, binary))
    asked = {"model_version": version, "request_id": "r 1", "parameters": {"who": "me"}, "timeout": 4_000_000}
    for some_outputs in (outputs, outputs[:1], None):
        result = client.infer("fake", inputs, outputs=some_outputs, **asked)
        for name in [output.name() for output in some_outputs or ()] or OUTPUTS:
            assert result.as_numpy(name).tobytes() == scores_of("3", TABLE)[name].tobytes()
        shown = result.get_response()
        assert (shown["id"], shown["model_version"], shown["parameters"]["who"]) == ("r 1", "3", "me")
        assert shown["parameters"]["unknown_keys.user"] == 1


def test_what_is_no_http_gets_a_400_and_the_server_goes_on(port):
    length = b"Content-Length: 5\r\n"
    for sent in (b"GET\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                 b"POST / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", b"A" * 100_000,
                 b"POST / HTTP/1.1\r\nHost: localhost\r\n" + length + b"Content-Length: 6\r\n\r\nhello",
                 b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):  # fmt: skip
        said = raw(port, sent)
        assert said.split(b" ")[1].startswith(b"4"), (sent, said)
    assert post(port)[0] == 200


LONG = b"long: " + (MAX_OTHER_BYTES + 1) * b"x"
CHUNKED = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "endless"),
    [(b"GET / HTTP/1.1\r\n", LONG), (b"GET /", LONG), (CHUNKED + b"0\r\n", LONG), (CHUNKED + b"1;", LONG)],
    ids=["header", "path", "trailer", "extension of a chunk"],
)
def test_what_never_ends_and_is_no_body_ends_the_connection(port, begin, endless):
    # If bytes are left that the server did not read, the system takes back its answer.
    with suppress(ConnectionResetError, BrokenPipeError):
        said = raw(port, begin + endless, shut=False)
        assert said.split(b" ")[1] == b"400", said
    assert post(port)[0] == 200


def test_a_long_body_in_chunks_of_a_byte_is_a_body(port):
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY + 250_000 * b" ")
    head = CHUNKED.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")
    assert raw(port, head + chunks + b"0\r\n\r\n", shut=False).startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_in_the_middle_harms_nobody(port):
    head = b"POST /v2/models/fake/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{"
    for part in (b"", b"POST", head):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(part)
    assert post(port)[0] == 200


def test_several_requests_on_a_connection_are_answered_in_turn(port):
    body, length = binary_request(TABLE, COLUMNS)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for status, path, sent, headers in (
        (200, INFER, body, {"Inference-Header-Content-Length": str(length)}),
        (400, INFER, b"{", {}),
        # Refused before the body is read, which the server then drops.
        (404, "/v2/models/other/infer", bytes(300_000), {}),
        (413, INFER, bytes((1 << 20) + 1), {}),
        (200, INFER, BODY, {}),
    ):
        connection.request("POST", path, sent, headers)
        reply = connection.getresponse()
        assert (reply.status, len(reply.read()) > 0) == (status, True)
    connection.close()


def test_an_answer_does_not_wait_for_an_acknowledgement(port):
    connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=10), []
    for _ in range(40):
        begun = time.monotonic()
        connection.request("POST", INFER, BODY)
        assert connection.getresponse().read()
        seconds.append(time.monotonic() - begun)
    connection.close()
    # A connection acknowledges at once for a while.
    assert min(seconds[20:]) < 0.03


def test_a_server_looks_at_its_folder_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "SWAP_SECONDS", 0.02)
    for version in "12":
        write_fake(tmp_path / version, version)
    publish(tmp_path, "1")
    with running(tmp_path) as port:
        assert b'"model_version":"1"' in post(port)[1]
        publish(tmp_path, "2")
        until = time.monotonic() + 10
        while b'"model_version":"2"' not in (said := post(port)[1]):
            assert time.monotonic() < until, said


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_a_signal_ends_the_server_when_what_has_come_is_answered(tmp_path, number):
    process, port = child(write_fake(tmp_path, "1", seconds=0.7))
    replies = []
    asking = [threading.Thread(target=lambda: replies.append(post(port)[0])) for _ in range(3)]
    for thread in asking:
        thread.start()
    idle = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    idle.request("GET", "/v2/health/ready")
    assert idle.getresponse().read() == b'{"ready":true}'
    while b"pipeline_requests_in_flight 3.0" not in text_of_metrics(port):
        assert asking[0].is_alive()
    process.send_signal(number)
    # Until it closes idle connections, it says that it is not ready.
    refused = []
    while process.poll() is None and not refused:
        try:
            idle.request("GET", "/v2/health/ready")
            assert idle.getresponse().read() in (b'{"ready":false}', b'{"ready":true}')
        except (OSError, http.client.HTTPException) as error:
            refused.append(error)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")
    for thread in asking:
        thread.join()
    assert replies == [200] * 3
    with pytest.raises(ConnectionRefusedError):
        post(port)


def text_of_metrics(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read()
    connection.close()
    return text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "65536"], "expected 0 to 65535, got 65536"),
        (["--memory", "512"], 'expected a size such as "512 MiB"'),
        (["--max-requests", "0"], "expected a number above 0, got 0"),
        (["--max-bytes", "2GiB"], "expected 1 B to"),
        (["--deadline", "nan"], "expected seconds, above 0 and up to a day"),
        (["--host", "192.0.2.1"], "error: --host 192.0.2.1 --port 8000: "),
        (["--host", "nowhere.invalid"], "error: --host nowhere.invalid --port 8000: "),
        ([], "holds no servable: it has no manifest.json, and no file `current`"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(tmp_path, capsys, flags, said):
    try:
        code = main([str(tmp_path), *flags], open_fake)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_first_servable_that_cannot_answer_is_refused(tmp_path, capsys):
    assert main([str(write_fake(tmp_path, "1", fails=True)), "--port", "0"], open_fake) == 2
    assert capsys.readouterr().err == "error: rows.pages: page 3 is damaged\n"


def test_a_package_that_is_not_installed_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pipeline.serving.http.server", None)
    assert main([str(tmp_path)], open_fake) == 2
    assert "pip install 'ctr-pipeline[serve]'" in capsys.readouterr().err


def test_a_port_in_use_is_refused_before_the_servable_is_opened(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([str(tmp_path), "--port", str(taken.getsockname()[1])], lambda *args: pytest.fail("opened")) == 2
    assert "Address already in use" in capsys.readouterr().err
