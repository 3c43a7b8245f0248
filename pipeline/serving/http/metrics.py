"""Metrics for Prometheus, in a registry of their own."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipeline.serving.http.admission import Admission
from pipeline.serving.http.current import Current
from pipeline.serving.http.served import Answer

LATENCY_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Bounds of the histogram of latencies, closest to each other around the 10 ms that a request may take."""


class RequestMetrics:
    """Counters of requests, updated by the thread of the event loop; the rest is read from its owners when it is
    asked for."""

    def __init__(self, admission: Admission, current: Current) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "pipeline_requests", "Inference requests by HTTP status", ["status"], registry=self._registry
        )
        self._seconds = Histogram(
            "pipeline_request_seconds", "Time from the head of an inference request to its answer, if it got scores",
            buckets=LATENCY_BOUNDS, registry=self._registry,
        )  # fmt: skip
        self._rows = Counter("pipeline_rows", "Rows that were scored", registry=self._registry)
        self._unknown: collections.Counter[str] = collections.Counter()
        self._bad: collections.Counter[str] = collections.Counter()
        self._registry.register(_Owners(admission, current, self._unknown, self._bad))
        ProcessCollector(registry=self._registry)

    def count(self, status: int, seconds: float) -> None:
        """Count a request that was answered with this status after this time."""
        self._requests.labels(str(status)).inc()
        if status == 200:
            self._seconds.observe(seconds)

    def count_rows(self, num_rows: int, answer: Answer) -> None:
        """Count the rows of a request that got scores, and their unknown keys and bad values by column."""
        self._rows.inc(num_rows)
        self._unknown.update(answer.unknown)
        self._bad.update(answer.bad)

    def text(self) -> bytes:
        """Metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _Owners(Collector):
    """Metrics that are plain numbers of their owners until they are asked for."""

    def __init__(
        self, admission: Admission, current: Current, unknown: Mapping[str, int], bad: Mapping[str, int]
    ) -> None:
        self._admission = admission
        self._current = current
        self._unknown, self._bad = unknown, bad

    def describe(self) -> Iterator[Metric]:
        """Return no metric: the registry would otherwise collect all of them to learn their names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        admission = self._admission
        yield GaugeMetricFamily("pipeline_requests_in_flight", "Requests in flight", admission.requests)
        yield GaugeMetricFamily("pipeline_bytes_in_flight", "Bytes of bodies in flight", admission.num_bytes)
        yield _labelled("pipeline_unknown_keys", "Keys without a row, by column", "column", self._unknown)
        bad = "Numbers outside the domain of their column, by column"
        yield _labelled("pipeline_bad_values", bad, "column", self._bad)
        swaps = "Servables that replaced another one, and those that were refused"
        yield _labelled("pipeline_swaps", swaps, "result", self._current.swaps)
        with self._current.lease() as served:
            info = GaugeMetricFamily("pipeline_servable", "The servable in use", None, ["name", "version"])
            info.add_metric([served.name, served.version], 1)
            yield info
            for name, count in served.counters().items():
                yield CounterMetricFamily(
                    f"pipeline_servable_{name}", "Counted by the servable in use since its opening", count
                )


def _labelled(name: str, meaning: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, meaning, None, [label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
