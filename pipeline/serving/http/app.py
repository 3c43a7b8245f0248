"""Endpoints of the Open Inference Protocol, as an ASGI application around the current servable."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.machine.hosts import refused_page
from pipeline.serving.http.admission import RETRY_SECONDS, Admission, RequestError
from pipeline.serving.http.current import Current
from pipeline.serving.http.request import HEADER_LENGTH, Answered, answer_post, json_bytes
from pipeline.serving.served_model import Answer, ServedModel

MEDIA_TYPES = ("application/json", "application/octet-stream")
"""Media types of a body: JSON, optionally followed by binary data."""
DESCRIPTION = {"name": "pipeline", "version": version("ctr-pipeline"), "extensions": ["binary_tensor_data"]}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BODY_SECONDS = 60
"""Maximum time to receive a body, in seconds."""
LEFT = 499
"""Status that metrics count if the client disconnects before its body is read."""

LATENCY_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Bucket bounds of the latency histogram, in seconds; densest around 10 ms, the time budget of a request."""


class Api:
    """All endpoints. The event loop reads bodies; one of `threads` decodes the tensors, predicts and writes the answer,
    so health checks and refusals are answered immediately."""

    def __init__(self, current: Current, admission: Admission, threads: ThreadPoolExecutor, deadline: float) -> None:
        """`deadline`: seconds from the arrival of a body within which the request must start reading rows; also the
        longest pause within a body."""
        self.metrics = RequestMetrics(admission, current)
        self.stopping = False
        """True when the server is shutting down and no longer ready."""
        self.bound = ""
        """Address that the server listens on; empty if there is none."""
        self._current = current
        self.admission = admission
        self._threads = threads
        self.deadline = deadline

    def app(self) -> Starlette:
        routes = [
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/v2/repository/index", self.index, methods=["POST"]),
            Route("/metrics", self.scrape),
        ]
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            routes.append(Route(path, self.model))
            routes.append(Route(f"{path}/ready", self.model_ready))
            routes.append(Route(f"{path}/infer", self.infer, methods=["POST"]))
        app = Starlette(
            routes=routes,
            middleware=[Middleware(self._known_host)],
            exception_handlers={HTTPException: refuse, RequestError: refuse, Exception: fail},
        )
        app.router.redirect_slashes = False
        return app

    def _known_host(self, app: ASGIApp) -> ASGIApp:
        """Return an application that refuses requests with a host name other than this machine's, or from a page of
        another server."""

        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            headers = Headers(scope=scope)
            why = refused_page(headers.get("origin"), headers.get("host", ""), self.bound)
            await (json_response({"error": why}, 403) if why else app)(scope, receive, send)

        return checked

    async def server(self, request: Request) -> Response:
        return json_response(DESCRIPTION)

    async def live(self, request: Request) -> Response:
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:
        return json_response({"ready": not self.stopping}, 503 if self.stopping else 200)

    async def model_ready(self, request: Request) -> Response:
        name = self._known(request).name
        return json_response({"name": name, "ready": not self.stopping}, 503 if self.stopping else 200)

    async def model(self, request: Request) -> Response:
        served = self._known(request)
        inputs = []
        for spec in served.inputs:
            of_time = {"parameters": spec.time.parameters} if spec.time else {}
            inputs.append(tensor_metadata(spec.name, spec.datatype) | of_time)
            if spec.is_list:
                inputs.append(tensor_metadata(f"{spec.name}.lengths", "INT64"))
        outputs = [tensor_metadata(name, "FP32") for name in served.outputs]
        model = {"name": served.name, "versions": [served.version], "platform": "pipeline"}
        return json_response({**model, "inputs": inputs, "outputs": outputs})

    async def index(self, request: Request) -> Response:
        served = self._current.served
        return json_response([{"name": served.name, "version": served.version, "state": "READY"}])

    async def scrape(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type=METRICS_TYPE)

    async def infer(self, request: Request) -> Response:
        begun, status = time.monotonic(), 500
        try:
            answered = await self._infer(request)
            status = 200
            self.metrics.count_rows(answered.num_rows, answered.answer)
            return Response(answered.body, headers=answered.headers)
        except RequestError as error:
            status = error.status
            raise
        except ClientDisconnect:
            status = LEFT
            return Response(status_code=400)
        finally:
            self.metrics.count(status, time.monotonic() - begun)

    async def _infer(self, request: Request) -> Answered:
        self._known(request)
        check_media_type(request)
        header_bytes = count_in(request, HEADER_LENGTH)
        announced, loop = count_in(request, "Content-Length") or 0, asyncio.get_running_loop()
        end = loop.time() + BODY_SECONDS
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self.deadline) as timer:
                    came = lambda: timer.reschedule(min(loop.time() + self.deadline, end))  # noqa: E731
                    reading = self.admission.read(announced, request.stream(), came)
                    body = await stack.enter_async_context(reading)
            except TimeoutError:
                late = f"no part of the body arrived for {self.deadline:g} s, or not all of it within {BODY_SECONDS} s"
                raise RequestError(408, late, close=True) from None
            asked, begun = request.path_params.get("version"), time.monotonic()
            return await loop.run_in_executor(self._threads, self._answer, body, header_bytes, asked, begun)

    def _answer(self, body: bytes, header_bytes: int | None, asked: str | None, begun: float) -> Answered:
        """Answer a request whose body arrived at `begun`. Runs in a thread of the pool."""

        def refuse_late(timeout: float) -> None:
            limit, passed = min(timeout, self.deadline), time.monotonic() - begun
            if passed > limit:
                raise RequestError(
                    504,
                    f"dropped {passed:.3f} s after it arrived, before any row was read: it had {limit:g} s "
                    "(parameters.timeout in microseconds, --deadline)",
                )

        refuse_late(math.inf)
        with self._current.lease() as served:
            refuse_version(asked, served)
            return answer_post(served, body, header_bytes, refuse_late)

    def _known(self, request: Request) -> ServedModel:
        """Return the current servable. Raises RequestError if the path names another model or version."""
        served, name = self._current.served, request.path_params["name"]
        if name != served.name:
            raise RequestError(404, f"model {name!r} is not served; {served.name!r} is")
        refuse_version(request.path_params.get("version"), served)
        return served


def refuse_version(asked: str | None, served: ServedModel) -> None:
    """Raises RequestError if another version than the servable's is requested; "1" is that of whatever is served."""
    if asked not in (None, "1", served.version):
        raise RequestError(404, f"version {asked!r} of {served.name!r} is not served; {served.version!r} is")


def check_media_type(request: Request) -> None:
    """Raises RequestError if the media type or encoding of the body is not supported."""
    found = request.headers.get("content-type", MEDIA_TYPES[0]).split(";")[0].strip().lower()
    if found not in MEDIA_TYPES:
        raise RequestError(415, f"Content-Type: {found!r}, expected one of {', '.join(MEDIA_TYPES)}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(415, "Content-Encoding: send the body without an encoding")


def count_in(request: Request, header: str) -> int | None:
    """Number in a header; None if the header is absent. Raises RequestError if it is not a number."""
    text = request.headers.get(header)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise RequestError(400, f"{header}: {text[:60]!r}, expected a number of bytes")
    return None if text is None else int(text)


def tensor_metadata(name: str, datatype: str) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [-1]}


def json_response(value: dict[str, Any] | list[Any], status: int = 200) -> Response:
    return Response(json_bytes(value), status, media_type="application/json")


async def refuse(request: Request, error: Exception) -> Response:
    """Answer with the protocol's error object."""
    if isinstance(error, HTTPException):
        response = json_response({"error": error.detail}, error.status_code)
        response.headers.update(error.headers or {})
        return response
    assert isinstance(error, RequestError)
    response = json_response({"error": str(error)}, error.status)
    if error.status == 503:
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    if error.close:
        response.headers["Connection"] = "close"
    return response


async def fail(request: Request, error: Exception) -> Response:
    """Answer to an internal error, whose traceback the server prints."""
    return json_response({"error": f"internal error: {type(error).__name__}"}, 500)


class RequestMetrics:
    """Counters of requests, updated by the event loop's thread. Other metrics are read at each scrape."""

    def __init__(self, admission: Admission, current: Current) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "pipeline_requests", "Inference requests by HTTP status", ["status"], registry=registry
        )
        self._seconds = Histogram(
            "pipeline_request_seconds", "Time from the head of an inference request to its answer, if it got scores",
            buckets=LATENCY_BOUNDS, registry=registry,
        )  # fmt: skip
        self._rows = Counter("pipeline_rows", "Rows that were scored", registry=registry)
        self._unknown = Counter("pipeline_unknown_keys", "Keys without a row, by column", ["column"], registry=registry)
        bad = "Numbers outside the domain of their column, by column"
        self._bad = Counter("pipeline_bad_values", bad, ["column"], registry=registry)
        requests = Gauge("pipeline_requests_in_flight", "Requests in flight", registry=registry)
        requests.set_function(lambda: admission.requests)
        num_bytes = Gauge("pipeline_bytes_in_flight", "Bytes of bodies in flight", registry=registry)
        num_bytes.set_function(lambda: admission.num_bytes)
        registry.register(_OfServable(current))
        ProcessCollector(registry=registry)

    def count(self, status: int, seconds: float) -> None:
        """Count a request that was answered with this status after this number of seconds."""
        self._requests.labels(str(status)).inc()
        if status == 200:
            self._seconds.observe(seconds)

    def count_rows(self, num_rows: int, answer: Answer) -> None:
        """Count the rows of a request that got scores, and their unknown keys and bad values by column."""
        self._rows.inc(num_rows)
        for counter, counts in ((self._unknown, answer.unknown), (self._bad, answer.bad)):
            for name, count in counts.items():
                counter.labels(name).inc(count)

    def text(self) -> bytes:
        """Metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _OfServable(Collector):
    """Metrics of the current servable, and of swaps."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: otherwise, the registry would collect all of them to learn their names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        meaning = "Servables that replaced another one, and those that were refused"
        swaps = CounterMetricFamily("pipeline_swaps", meaning, None, ["result"])
        for result, count in self._current.swaps.items():
            swaps.add_metric([result], count)
        yield swaps
        with self._current.lease() as served:
            info = GaugeMetricFamily("pipeline_servable", "The servable in use", None, ["name", "version"])
            info.add_metric([served.name, served.version], 1)
            yield info
            meaning = "Counted by the servable in use since its opening"
            for name, count in served.counters().items():
                yield CounterMetricFamily(f"pipeline_servable_{name}", meaning, count)
