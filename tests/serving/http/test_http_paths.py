"""Paths of the Open Inference Protocol, called without a socket."""

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest
from support.http.file_servables import COLUMNS, OUTPUTS, Fake, api_of, fail, scores_of
from support.http.oip import LENGTH, binary_request, call, call_once, json_request

from pipeline.features.times import TimeInput
from pipeline.serving.served_model import InputSpec

INFER = "/v2/models/fake/infer"
INPUTS = (InputSpec("user", "UINT64", False),)
TABLE = pa.table({"user": pa.array([2**64 - 1, None, 2**53 + 1], pa.uint64())})


@pytest.fixture
def fake():
    return Fake("7", INPUTS)


@pytest.fixture
def api(tmp_path, fake):
    with api_of(tmp_path, fake) as api:
        yield api


@pytest.fixture
def app(api):
    return api.app()


def test_the_server_says_what_it_is(app):
    shown = call_once(app, "GET", "/v2").json
    assert (shown["name"], shown["extensions"]) == ("pipeline", ["binary_tensor_data"])
    assert call_once(app, "GET", "/v2/health/live").json == {"live": True}
    assert call_once(app, "GET", "/v2/health/ready").json == {"ready": True}
    assert call_once(app, "POST", "/v2/repository/index").json == [{"name": "fake", "version": "7", "state": "READY"}]


@pytest.mark.parametrize("path", [f"/v2/models/fake{v}" for v in ("", "/versions/7", "/versions/1")])
def test_the_model_says_what_it_reads(app, path):
    assert call_once(app, "GET", path).json == {
        "name": "fake",
        "versions": ["7"],
        "platform": "pipeline",
        "inputs": [{"name": "user", "datatype": "UINT64", "shape": [-1]}],
        "outputs": [{"name": name, "datatype": "FP32", "shape": [-1]} for name in OUTPUTS],
    }
    assert call_once(app, "GET", f"{path}/ready").json == {"name": "fake", "ready": True}
    assert call_once(app, "POST", f"{path}/infer", json_request(TABLE, INPUTS)).status == 200


def test_a_list_column_is_announced_as_two_tensors(tmp_path):
    with api_of(tmp_path, Fake(inputs=COLUMNS)) as api:
        names = [entry["name"] for entry in call_once(api.app(), "GET", "/v2/models/fake").json["inputs"]]
    assert names == ["price", "user", "country", "history", "history.lengths", "tags", "tags.lengths"]


def test_a_server_that_stops_is_live_and_not_ready_and_answers(api, app):
    api.stopping = True
    for path in ("/v2/health/ready", "/v2/models/fake/ready"):
        reply = call_once(app, "GET", path)
        assert (reply.status, reply.json["ready"]) == (503, False)
    assert call_once(app, "GET", "/v2/health/live").status == 200
    assert call_once(app, "POST", INFER, json_request(TABLE, INPUTS)).status == 200


def test_id_and_parameters_are_returned_unknown_keys_counted(app, fake):
    parameters = {"who": "me", "n": 2**63 + 1, "x": 0.1, "yes": True}
    shown = call_once(app, "POST", INFER, json_request(TABLE, INPUTS, id="\u00e9 42", parameters=parameters)).json
    assert shown["id"] == "\u00e9 42"
    assert shown["parameters"] == {**parameters, "unknown_keys.user": 1}
    assert (shown["model_name"], shown["model_version"]) == ("fake", "7")
    assert fake.tables[-1]["user"].to_pylist() == [2**64 - 1, None, 2**53 + 1]
    assert "id" not in call_once(app, "POST", INFER, json_request(TABLE, INPUTS)).json


def test_outputs_are_those_asked_for_in_their_order(app):
    asked = [{"name": OUTPUTS[1], "parameters": {"binary_data": True}}, {"name": OUTPUTS[0]}]
    body, length = binary_request(TABLE, INPUTS, outputs=asked)
    reply = call_once(app, "POST", INFER, body, {LENGTH: length, "content-type": "application/octet-stream"})
    probability, logit = reply.json["outputs"]
    expected = scores_of("7", TABLE)
    assert (probability["name"], probability["parameters"]) == (OUTPUTS[1], {"binary_data_size": 12})
    assert (logit["name"], logit["data"]) == (OUTPUTS[0], expected[OUTPUTS[0]].tolist())
    assert reply.body.endswith(b"}" + expected[OUTPUTS[1]].tobytes())
    assert reply.headers["content-type"] == "application/octet-stream"
    only = call_once(app, "POST", INFER, json_request(TABLE, INPUTS, outputs=asked[1:])).json["outputs"]
    assert [output["name"] for output in only] == [OUTPUTS[0]]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "said"),
    [
        ("GET", "/", {}, 404, "Not Found"),
        ("GET", "/v2/", {}, 404, "Not Found"),
        ("GET", "/v2/models/other", {}, 404, "model 'other' is not served; 'fake' is"),
        ("GET", "/v2/models/\0", {}, 404, "model '\\x00'"),
        ("POST", "/v2/models//infer", {}, 404, "Not Found"),
        ("POST", "/v2/models/fake/versions//infer", {}, 404, "Not Found"),
        ("\0", "/v2", {}, 405, "Method Not Allowed"),
        ("GET", "/v2/models/other/ready", {}, 404, "model 'other'"),
        ("POST", "/v2/models/other/infer", {}, 404, "model 'other'"),
        ("POST", "/v2/models/fake/versions/2/infer", {}, 404, "version '2' of 'fake' is not served; '7' is"),
        ("GET", INFER, {}, 405, "Method Not Allowed"),
        ("DELETE", "/v2/health/ready", {}, 405, "Method Not Allowed"),
        ("POST", INFER, {"content-type": "text/plain"}, 415, "Content-Type: 'text/plain', expected one of"),
        ("POST", INFER, {"content-type": "\xe9"}, 415, "Content-Type: '\xe9'"),
        ("POST", INFER, {"content-encoding": "gzip"}, 415, "Content-Encoding"),
        ("POST", INFER, {LENGTH: "-1"}, 400, f"{LENGTH}: '-1', expected a number"),
        ("POST", INFER, {LENGTH: "9" * 99}, 400, f"{LENGTH}: '999"),
        ("POST", INFER, {LENGTH: "\u00b2"}, 400, f"{LENGTH}: '\u00b2'"),
        ("POST", INFER, {"content-length": "1e3"}, 400, "Content-Length: '1e3'"),
        ("POST", INFER, {}, 400, "content: Invalid JSON"),
    ],
)
def test_what_has_no_answer_gets_a_status_and_its_reason(app, method, path, headers, status, said):
    reply = call_once(app, method, path, b"", headers)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    assert said in reply.json["error"]


@pytest.mark.parametrize(
    ("work", "status", "said"),
    [
        (ValueError("column 'user': 3 bad values"), 400, "column 'user': 3 bad values"),
        (OSError("rows.pages: page 3 is damaged"), 500, "rows could not be read: rows.pages: page 3 is damaged"),
    ],
)
def test_a_failed_prediction_is_reported_and_the_server_goes_on(app, fake, work, status, said):
    def bad(table):
        raise work

    fake.work = bad
    reply = call_once(app, "POST", INFER, json_request(TABLE, INPUTS))
    assert (reply.status, reply.json) == (status, {"error": said})
    fake.work = None
    assert call_once(app, "POST", INFER, json_request(TABLE, INPUTS)).status == 200


def test_a_fault_of_our_own_is_a_500_and_raised_for_the_log(app, fake):
    fake.work = lambda table: {}["nothing"]
    replies = []

    async def watched():
        with pytest.raises(KeyError):
            await call(app, "POST", INFER, json_request(TABLE, INPUTS), replies=replies)

    asyncio.run(watched())
    assert (replies[0].status, replies[0].json) == (500, {"error": "internal error: KeyError"})


def test_metrics_count_by_status_and_tell_what_is_served(app, fake):
    call_once(app, "POST", INFER, json_request(TABLE, INPUTS))
    call_once(app, "POST", INFER, json_request(TABLE, INPUTS))
    call_once(app, "POST", INFER, b"{}")
    fake.work = fail
    call_once(app, "POST", INFER, json_request(TABLE, INPUTS))
    lines = call_once(app, "GET", "/metrics").body.decode().splitlines()
    for line in (
        'pipeline_requests_total{status="200"} 2.0',
        'pipeline_requests_total{status="400"} 1.0',
        'pipeline_requests_total{status="500"} 1.0',
        "pipeline_request_seconds_count 2.0",
        "pipeline_rows_total 6.0",
        'pipeline_unknown_keys_total{column="user"} 2.0',
        "pipeline_requests_in_flight 0.0",
        "pipeline_bytes_in_flight 0.0",
        'pipeline_swaps_total{result="done"} 0.0',
        'pipeline_swaps_total{result="refused"} 0.0',
        'pipeline_servable{name="fake",version="7"} 1.0',
        "pipeline_servable_pages_hit_total 7.0",
    ):
        assert line in lines


def test_bad_values_are_counted_in_the_answer_and_the_metrics(tmp_path):
    class Bad(Fake):
        def predict(self, table):
            return replace(super().predict(table), bad={"price": 2})

    with api_of(tmp_path, Bad(inputs=INPUTS)) as api:
        shown = call_once(api.app(), "POST", INFER, json_request(TABLE, INPUTS)).json
        assert shown["parameters"]["bad_values.price"] == 2
        assert b'pipeline_bad_values_total{column="price"} 2.0' in api.metrics.text()


def test_two_servers_in_a_process_have_metrics_of_their_own(tmp_path):
    with api_of(tmp_path / "a", Fake(inputs=INPUTS)) as one, api_of(tmp_path / "b", Fake(inputs=INPUTS)) as other:
        call_once(one.app(), "POST", INFER, json_request(TABLE, INPUTS))
        assert b'pipeline_requests_total{status="200"} 1.0' in one.metrics.text()
        assert b"pipeline_requests_total{" not in other.metrics.text()


def test_metadata_show_the_unit_and_the_zone_of_a_time(tmp_path):
    time = TimeInput("when", pa.timestamp("ms", "UTC"), "ms")
    with api_of(tmp_path, Fake(inputs=(InputSpec("when", "INT64", False, time),))) as api:
        (shown,) = call_once(api.app(), "GET", "/v2/models/fake").json["inputs"]
    assert shown["parameters"] == {"unit": "ms", "zone": "UTC"}
