"""Limits: what is over them is refused before it is read, and what came too late before a row is read."""

import asyncio
import threading

import pyarrow as pa
import pytest
from support.http.file_servables import Fake, api_of
from support.http.oip import LENGTH, binary_request, call, json_request

from pipeline.serving.served_model import InputSpec

INFER = "/v2/models/fake/infer"
INPUTS = (InputSpec("user", "UINT64", False),)
TABLE = pa.table({"user": pa.array([1, 2], pa.uint64())})
BODY = json_request(TABLE, INPUTS)


class Gate:
    """Holds predictions until it is opened."""

    def __init__(self):
        self.fake = Fake(inputs=INPUTS)
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)

    def hold(self):
        """Hold all but the probe."""
        self.fake.work = self._wait

    def _wait(self, table):
        self.entered.release()
        assert self.opened.wait(10)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


async def until(true):
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError


async def never():
    raise AssertionError("the body was read")
    yield b""


def in_flight(api):
    return api.admission.requests, api.admission.num_bytes


def test_requests_over_the_limit_get_503_at_once(tmp_path, gate):
    async def scenario(api):
        app = api.app()
        gate.hold()
        held = [asyncio.create_task(call(app, "POST", INFER, BODY)) for _ in range(3)]
        await until(lambda: in_flight(api)[0] == 3)
        over = await call(app, "POST", INFER, headers={"content-length": "9"}, pieces=never())
        assert (over.status, over.headers["retry-after"]) == (503, "1")
        assert "3 requests are in flight" in over.json["error"]
        # The loop says so while every thread predicts.
        assert (await call(app, "GET", "/v2/health/ready")).status == 200
        assert b"pipeline_requests_in_flight 3.0" in (await call(app, "GET", "/metrics")).body
        gate.opened.set()
        assert [reply.status for reply in await asyncio.gather(*held)] == [200] * 3
        assert in_flight(api) == (0, 0)
        assert (await call(app, "POST", INFER, BODY)).status == 200

    with api_of(tmp_path, gate.fake, max_requests=3) as api:
        asyncio.run(scenario(api))


def test_bytes_over_the_limit_get_503_or_413(tmp_path, gate):
    async def scenario(api):
        app = api.app()
        gate.hold()
        held = asyncio.create_task(call(app, "POST", INFER, BODY))
        await until(lambda: in_flight(api) == (1, len(BODY)))
        limit = 2 * len(BODY) - 1
        late = await call(app, "POST", INFER, headers={"content-length": str(len(BODY))}, pieces=never())
        assert (late.status, late.headers["retry-after"]) == (503, "1")
        large = await call(app, "POST", INFER, headers={"content-length": str(limit + 1)}, pieces=never())
        assert (large.status, "--max-bytes" in large.json["error"]) == (413, True)
        assert "connection" not in large.headers
        gate.opened.set()
        assert (await held).status == 200
        assert in_flight(api) == (0, 0)

    with api_of(tmp_path, gate.fake, max_bytes=2 * len(BODY) - 1) as api:
        asyncio.run(scenario(api))


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(tmp_path):
    async def endless():
        nonlocal given
        while True:
            given += 1
            yield bytes(100)

    async def whole():
        for n in range(len(BODY)):
            yield BODY[n : n + 1]

    async def scenario(api):
        cut = await call(api.app(), "POST", INFER, pieces=endless())
        assert (cut.status, cut.headers["connection"]) == (413, "close")
        assert given == 11
        assert (await call(api.app(), "POST", INFER, pieces=whole())).status == 200
        assert in_flight(api) == (0, 0)

    given = 0
    with api_of(tmp_path, Fake(inputs=INPUTS), max_bytes=1000) as api:
        asyncio.run(scenario(api))


def test_a_body_that_does_not_come_is_dropped(tmp_path):
    async def stalled():
        yield b"{"
        await asyncio.sleep(60)

    async def scenario(api):
        reply = await call(api.app(), "POST", INFER, pieces=stalled())
        assert (reply.status, reply.headers["connection"]) == (408, "close")
        assert in_flight(api) == (0, 0)

    with api_of(tmp_path, Fake(inputs=INPUTS), deadline=0.05) as api:
        asyncio.run(scenario(api))


def test_a_client_that_leaves_frees_its_place(tmp_path):
    async def scenario(api):
        app, sent = api.app(), []

        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": INFER, "raw_path": b"", "query_string": b"",
                 "root_path": "", "scheme": "http", "headers": [(b"content-length", b"10")]}  # fmt: skip
        await app(scope, receive, send)
        assert in_flight(api) == (0, 0)
        assert b'pipeline_requests_total{status="499"} 1.0' in api.metrics.text()

    with api_of(tmp_path, Fake(inputs=INPUTS)) as api:
        asyncio.run(scenario(api))


@pytest.mark.parametrize("kind", ["json", "binary", "longer than the server's"])
def test_a_request_past_its_deadline_is_dropped_before_it_reads(tmp_path, gate, kind):
    late = {"parameters": {"timeout": 20_000}}
    binary, length = binary_request(TABLE, INPUTS, **late)
    body, headers = {
        "json": (json_request(TABLE, INPUTS, **late), {}),
        "binary": (binary, {LENGTH: length}),
        "longer than the server's": (json_request(TABLE, INPUTS, parameters={"timeout": 60_000_000}), {}),
    }[kind]

    async def scenario(api):
        app = api.app()
        gate.hold()
        held = asyncio.create_task(call(app, "POST", INFER, BODY))
        await until(lambda: gate.entered.acquire(blocking=False))
        if kind.startswith("longer"):
            api.deadline = 0.02
        waiting = asyncio.create_task(call(app, "POST", INFER, body, headers))
        await until(lambda: in_flight(api)[0] == 2)
        await asyncio.sleep(0.05)
        gate.opened.set()
        assert (await held).status == 200
        dropped = await waiting
        assert dropped.status == 504
        assert "before any row was read: it had 0.02 s" in dropped.json["error"]
        # The probe and the first request.
        assert len(gate.fake.tables) == 2

    with api_of(tmp_path, gate.fake, threads=1) as api:
        asyncio.run(scenario(api))
