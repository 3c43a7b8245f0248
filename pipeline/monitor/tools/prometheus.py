"""Prometheus metrics of the runs of this process, exposed in /metrics of Dask's scheduler. They are read from
live.jsonl at each scrape and cost nothing otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipeline.monitor.story import FollowedStory, Story
from pipeline.monitor.tools.reader import curves_at

COUNTERS = {
    "examples": ("Training examples", ()),
    "wait_seconds": ("Seconds of this session that training waited, by cause; train: that it did not", ("cause",)),
    "stage_seconds": ("Wall seconds of each stage in this session", ("stage",)),
    "hits": ("Keys by where they were found; new: nowhere", ("tier",)),
    "disk_bytes": ("Bytes of the rows that moved between disk and memory", ("direction",)),
}
GAUGES = {
    "examples_per_second": ("Examples of training and evaluation a second, in the last minute", ()),
    "progress_ratio": ("Share of the examples of training and evaluation that are done", ()),
    "loss": ("Mean loss of the last training blocks", ()),
    "learning_rate": ("Learning rate of the rows and of the dense part", ("part",)),
    "hit_ratio": ("Share of the keys not found in a faster tier that were in this one, in the last minute", ("tier",)),
    "blocks_ready": ("Blocks that were staged and waiting when the last one was trained", ()),
    "rows": ("Rows in the tier", ("tier",)),
    "capacity_rows": ("Rows that fit in the tier", ("tier",)),
    "log_bytes": ("Bytes of the log", ()),
    "log_cap_bytes": ("Maximum bytes of the log", ()),
    "free_bytes": ("Free space of the disk of the run directory", ()),
    "resident_bytes": ("Resident memory of the driver's process", ()),
    "last_commit_timestamp_seconds": ("Time of the last commit, in seconds since 1970", ()),
    "last_commit_seconds": ("Seconds that the last commit took", ()),
    "last_tick_timestamp_seconds": ("Time of the line that these metrics are from, in seconds since 1970", ()),
    "metric": ("Metrics of the last evaluation of each split", ("split", "metric")),
}
"""Name without "pipeline_run_", meaning, and labels in addition to `run`. Counters get the suffix "_total"."""

Values = dict[str, dict[tuple[str, ...], float]]
"""Values by name and labels."""


def _values_of(story: Story) -> Values:
    evaluated = {one.split: one.metrics for _, one in story.evaluations}
    values: Values = {
        "metric": {
            (split, name): value
            for split, metrics in evaluated.items()
            for name, value in metrics.items()
            if value is not None
        }
    }
    if story.commits:
        _, commit = story.commits[-1]
        values |= {"last_commit_timestamp_seconds": {(): commit.at}, "last_commit_seconds": {(): commit.took}}
    begin, lately = story.begin, story.lately()
    if not begin or not lately:
        return values
    tick = lately.tick
    # A missing count must not hide all other metrics of the process.
    moves = defaultdict(int, tick.moves)
    written = moves["device_to_disk"] + moves["host_to_disk"] - moves["unchanged"]
    values |= {
        "examples": {(): tick.trained},
        "wait_seconds": _by(tick.waits),
        "stage_seconds": _by(tick.stages),
        "hits": _by({tier: moves[f"{tier}_hits"] for tier in ("device", "host", "disk")} | {"new": moves["new"]}),
        "disk_bytes": _by({"read": begin.row_bytes * moves["disk_hits"], "written": begin.row_bytes * written}),
        "progress_ratio": {(): tick.examples / begin.total} if begin.total else {},
        "rows": _by({"device": tick.device_rows, "host": tick.host_rows}),
        "capacity_rows": _by({"device": begin.device_rows, "host": begin.host_rows}),
        "log_cap_bytes": {(): begin.disk_cap_bytes},
        "free_bytes": {(): tick.free_bytes},
        "resident_bytes": {(): tick.rss_bytes},
        "last_tick_timestamp_seconds": {(): tick.at},
    }
    for curve, value in curves_at(lately).items():
        name, _, label = curve.replace("hit_rate", "hit_ratio").partition("/")
        values.setdefault(name, {})[(label,) if label else ()] = value
    return values


def _by(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """Values keyed by a single label."""
    return {(name,): value for name, value in values.items()}


class _RunMetrics(Collector):
    """Collector of the metrics of all open runs in this process; the label `run` is the folder. Registered while any
    run is open. Thread-safe."""

    def __init__(self) -> None:
        self._runs, self._lock = dict[str, FollowedStory](), Lock()

    @contextmanager
    def having(self, run_dir: Path) -> Iterator[None]:
        """Context in which the registry includes the metrics of a run."""
        with self._lock:
            if not self._runs:
                REGISTRY.register(self)
            self._runs[str(run_dir)] = FollowedStory(run_dir)
        try:
            yield
        finally:
            with self._lock:
                del self._runs[str(run_dir)]
                if not self._runs:
                    REGISTRY.unregister(self)

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: otherwise, the registry would collect all of them to learn their names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            values = {run: _values_of(story.read()) for run, story in self._runs.items()}
        for kind, described in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for name, (meaning, labels) in described.items():
                family = kind(f"pipeline_run_{name}", meaning, None, ["run", *labels])
                for run, of_run in values.items():
                    for which, value in of_run.get(name, {}).items():
                        family.add_metric([run, *which], value)
                yield family


metrics_of = _RunMetrics().having
"""Context in which the default registry of `prometheus_client` includes the metrics of a run."""
