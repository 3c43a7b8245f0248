"""Prometheus metrics, in a separate registry for each server."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipeline.serving.http.admission import Admission
from pipeline.serving.http.current import Current
from pipeline.serving.served_model import Answer

LATENCY_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Bucket bounds of the latency histogram, in seconds; densest around 10 ms, the time budget of a request."""


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
