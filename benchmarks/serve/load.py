"""Load on a server: bodies of requests, a closed loop, and an open loop with latencies from the intended start."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.serve.servables import NUM_FIELDS
from pipeline.records import I64

F64 = NDArray[np.float64]

LENGTH = "Inference-Header-Content-Length"
PATH = "/v2/models/bench/infer"
CONNECTIONS = 8
"""Number of connections of a closed loop. An open loop has as many as the server admits requests."""
ADMITTED = 16


@dataclass(frozen=True, slots=True)
class Body:
    """Body of a request, and the length of its JSON."""

    content: bytes
    header_bytes: int

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/octet-stream", LENGTH: str(self.header_bytes)}


def body_of(values_FB: I64) -> Body:
    """Binary tensors of the columns c0, c1, ..."""
    num_bytes = {"binary_data_size": values_FB.shape[1] * 8}
    inputs = [
        {"name": f"c{f}", "datatype": "INT64", "shape": [values_FB.shape[1]], "parameters": num_bytes}
        for f in range(NUM_FIELDS)
    ]
    asked = {"outputs": [{"name": "click.probability", "parameters": {"binary_data": True}}]}
    text = json.dumps({"inputs": inputs, **asked}).encode()
    return Body(text + values_FB.tobytes(), len(text))


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests of one load, in the order of their intended starts."""

    latencies: F64
    """Seconds from the intended start."""
    statuses: I64
    """HTTP status; 0 if the connection broke."""
    seconds: float
    """Seconds from the first intended start to the last answer."""

    @property
    def admitted(self) -> F64:
        return self.latencies[self.statuses == 200]


def p99(seconds: F64) -> float:
    return float(np.quantile(seconds, 0.99))


def poisson(rate: float, seconds: float, seed: int) -> F64:
    """Arrival times in seconds, from 0."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(20, int(rate * seconds)))
    moments: F64 = np.cumsum(gaps)
    return moments


def load(address: tuple[str, int], bodies: Sequence[Body], moments: F64, connections: int = ADMITTED) -> Measured:
    """Send a request at each of these times, with the bodies in turn, over persistent connections. Time 0 means as soon
    as a connection is free (a closed loop); latencies then count from the actual start."""
    count, closed = len(moments), not moments.any()
    latencies, statuses = np.zeros(count), np.zeros(count, np.int64)
    following, lock = iter(range(count)), threading.Lock()
    ready = threading.Barrier(connections + 1)
    begun = 0.0

    def send_some() -> None:
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.connect()
        ready.wait()
        while True:
            with lock:
                n = next(following, None)
            if n is None:
                break
            intended = begun + moments[n]
            if (wait := intended - time.perf_counter()) > 0:
                time.sleep(wait)
            started = time.perf_counter()
            try:
                body = bodies[n % len(bodies)]
                connection.request("POST", PATH, body.content, body.headers)
                answer = connection.getresponse()
                answer.read()
                statuses[n] = answer.status
            except (OSError, http.client.HTTPException):
                connection.close()
            latencies[n] = time.perf_counter() - (started if closed else intended)
        connection.close()

    threads = [threading.Thread(target=send_some) for _ in range(connections)]
    for thread in threads:
        thread.start()
    begun = time.perf_counter() + 0.02
    ready.wait()
    for thread in threads:
        thread.join()
    return Measured(latencies, statuses, time.perf_counter() - begun)


def closed_loop(
    address: tuple[str, int], bodies: Sequence[Body], count: int, connections: int = CONNECTIONS
) -> Measured:
    return load(address, bodies, np.zeros(count), connections)
