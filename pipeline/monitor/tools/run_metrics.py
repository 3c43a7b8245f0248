"""Metrics of the runs of this process for Prometheus. They are read from live.jsonl when they are asked for, so they
cost nothing until then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipeline.monitor.live.lines import Begin, CommitDone, Tick
from pipeline.monitor.tools.newest import Newest
from pipeline.monitor.tools.tick_rates import rates_between

COUNTERS = {
    "examples": ("Training examples", ()),
    "wait_seconds": ("Seconds of this session that training waited, by cause; train: that it did not", ("cause",)),
    "stage_seconds": ("Wall seconds of each stage in this session", ("stage",)),
    "keys": ("Unique keys that blocks looked up", ()),
    "hits": ("Keys by where they were found; new: nowhere", ("tier",)),
    "disk_rows": ("Rows that moved between disk and memory", ("direction",)),
    "disk_bytes": ("Bytes of the rows that moved between disk and memory", ("direction",)),
    "commits": ("Commits of the run", ()),
    "log_written_bytes": ("Bytes written to the log up to the last commit, what commits rewrite included", ()),
}
GAUGES = {
    "examples_per_second": ("Examples of training and evaluation a second, between the last two lines", ()),
    "progress_ratio": ("Share of the agenda, training and evaluation, that is done", ()),
    "epoch": ("Epoch, from 0", ()),
    "loss": ("Mean loss of the last training blocks", ()),
    "learning_rate": ("Learning rate of the rows and of the dense part", ("part",)),
    "hit_ratio": (
        "Share of the keys not found in a faster tier that this one had, between the last two lines",
        ("tier",),
    ),
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
"""Names, without "pipeline_run_", meaning, and labels besides `run`. Counters get the suffix "_total"."""

Values = dict[str, dict[tuple[str, ...], float]]
"""Values by name and labels."""


class RunMetrics(Collector):
    """Collector of the metrics of all runs that are open in this process, told apart by the label `run`. It is in the
    registry while it has a run. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry, self._runs, self._lock = registry, dict[str, Newest](), Lock()

    def add(self, run_dir: Path) -> None:
        with self._lock:
            if not self._runs:
                self._registry.register(self)
            self._runs[str(run_dir)] = Newest(run_dir)

    def remove(self, run_dir: Path) -> None:
        with self._lock:
            del self._runs[str(run_dir)]
            if not self._runs:
                self._registry.unregister(self)

    def describe(self) -> Iterator[Metric]:
        """Return no metric: the registry would otherwise collect all of them to learn their names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            values = {run: _values(newest) for run, newest in self._runs.items()}
        for name, (meaning, labels) in COUNTERS.items():
            yield _filled(CounterMetricFamily(f"pipeline_run_{name}", meaning, None, ["run", *labels]), name, values)
        for name, (meaning, labels) in GAUGES.items():
            yield _filled(GaugeMetricFamily(f"pipeline_run_{name}", meaning, None, ["run", *labels]), name, values)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, name: str, values: Mapping[str, Values]
) -> CounterMetricFamily | GaugeMetricFamily:
    for run, of_run in values.items():
        for labels, value in of_run.get(name, {}).items():
            family.add_metric([run, *labels], value)
    return family


def _values(newest: Newest) -> Values:
    newest.look()
    values: Values = {
        "metric": {
            (split, name): value
            for split, evaluated in newest.evaluated.items()
            for name, value in evaluated.metrics.items()
            if value is not None
        }
    }
    if newest.begin and newest.ticks:
        values |= _of_tick(newest.begin, newest.ticks[-1]) | _between(newest.begin, newest.ticks)
    return values | (_of_commit(newest.commit) if newest.commit else {})


def _of_tick(begin: Begin, tick: Tick) -> Values:
    # A name that is missing must not keep all other metrics of the process from being told.
    moves = defaultdict(int, tick.moves)
    disk_rows = {
        "read": moves["disk_hits"],
        "written": moves["device_to_disk"] + moves["host_to_disk"] - moves["unchanged"],
    }
    return {
        "examples": {(): tick.trained},
        "wait_seconds": _by(tick.waits),
        "stage_seconds": _by(tick.stages),
        "keys": {(): moves["keys"]},
        "hits": _by({tier: moves[f"{tier}_hits"] for tier in ("device", "host", "disk")} | {"new": moves["new"]}),
        "disk_rows": _by(disk_rows),
        "disk_bytes": _by({direction: rows * begin.row_bytes for direction, rows in disk_rows.items()}),
        "progress_ratio": {(): tick.examples / begin.total} if begin.total else {},
        "epoch": {(): tick.epoch},
        "loss": {} if tick.loss is None else {(): tick.loss},
        "learning_rate": _by({"rows": tick.lr_rows, "dense": tick.lr_dense}),
        "blocks_ready": {(): tick.ready},
        "rows": _by({"device": tick.device_rows, "host": tick.host_rows}),
        "capacity_rows": _by({"device": begin.device_rows, "host": begin.host_rows}),
        "log_bytes": {(): tick.disk_bytes},
        "log_cap_bytes": {(): begin.disk_cap_bytes},
        "free_bytes": {(): tick.free_bytes},
        "resident_bytes": {(): tick.rss_bytes},
        "last_tick_timestamp_seconds": {(): tick.at},
    }


def _between(begin: Begin, ticks: tuple[Tick, ...]) -> Values:
    rates = rates_between(begin, ticks[0] if len(ticks) > 1 else None, ticks[-1])
    if rates is None:
        return {}
    return {"examples_per_second": {(): rates.examples_per_second}, "hit_ratio": _by(rates.hit_rates)}


def _of_commit(commit: CommitDone) -> Values:
    return {
        "commits": {(): commit.number},
        "log_written_bytes": {(): commit.written_bytes},
        "last_commit_timestamp_seconds": {(): commit.at},
        "last_commit_seconds": {(): commit.took},
    }


def _by(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """Values with one label."""
    return {(name,): value for name, value in values.items()}


RUN_METRICS = RunMetrics(REGISTRY)
"""The collector of this process."""
