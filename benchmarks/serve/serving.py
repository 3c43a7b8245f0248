"""Latencies of `pipeline serve` at several hit rates of its cache, and under four times the load that it can handle."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from benchmarks.serve.load import ADMITTED, F64, Measured, closed_loop, load, p99, poisson
from benchmarks.serve.requests import NUM_KEYS, Requests
from benchmarks.serve.servables import Table
from benchmarks.serve.server import Server, on_core
from pipeline.serving.servable import open_files

HIT_RATES = (0.0, 0.9, 0.95, 0.99)
LOADS = (0.5, 0.8)
JUDGED = 0.95
TIMES, CONNECTIONS = 4, 96
"""Load of the overload, as a multiple of the capacity, and number of its connections."""
SETTLED_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the measurement."""

    memory_bytes: int = 256 << 20
    rounds: int = 5
    closed: int = 300
    """Requests of a closed loop."""
    seconds: float = 10.0
    """Length of an open loop."""
    overload_seconds: float = 60.0


class Bench:
    """A server, and the requests that it gets."""

    def __init__(self, server: Server, requests: Requests, scale: Scale) -> None:
        self._server, self._requests, self._scale = server, requests, scale
        closed_loop(server.address, requests.warming(), len(requests.warming()))

    def _closed(self, hit_rate: float, connections: int, count: int) -> Measured:
        return closed_loop(self._server.address, self._requests.bodies(count, hit_rate), count, connections)

    def _open(self, hit_rate: float, moments: F64, connections: int) -> Measured:
        return load(self._server.address, self._requests.bodies(len(moments), hit_rate), moments, connections)

    def _capacity(self, hit_rate: float) -> float:
        """Requests per second of a closed loop."""
        count = self._scale.closed
        self._closed(hit_rate, 4, max(10, count // 10))
        return count / _answered(self._closed(hit_rate, 4, count)).seconds

    def round(self, hit_rate: float, seed: int) -> dict[str, float]:
        """Share of the keys that were in the cache, capacity in requests per second, and seconds."""
        hit, missed = self._server.keys()
        capacity = self._capacity(hit_rate)
        alone = _answered(self._closed(hit_rate, 1, self._scale.closed)).latencies
        found = {"capacity": capacity, "p50 alone": float(np.median(alone)), "p99 alone": p99(alone)}
        for share in LOADS:
            moments = poisson(share * capacity, self._scale.seconds, seed)
            latencies = _answered(self._open(hit_rate, moments, ADMITTED)).latencies
            at = f"at {100 * share:.0f} %"
            found |= {f"p50 {at}": float(np.median(latencies)), f"p99 {at}": p99(latencies)}
        hit_after, missed_after = self._server.keys()
        return found | {"hit rate": (hit_after - hit) / (hit_after - hit + missed_after - missed)}

    def overload(self) -> dict[str, float]:
        """Send several times the capacity. Returns the p99 of admitted requests relative to that at 80 %, and the
        growth of the server's memory in MiB."""
        scale, capacity = self._scale, self._capacity(JUDGED)
        usual = self._open(JUDGED, poisson(0.8 * capacity, scale.seconds, 0), ADMITTED)
        before = self._server.memory("VmRSS")
        heavy = self._open(JUDGED, poisson(TIMES * capacity, scale.overload_seconds, 1), CONNECTIONS)
        time.sleep(SETTLED_SECONDS)
        growth = (self._server.memory("VmRSS") - before) / 2**20
        ratio = p99(heavy.admitted) / p99(usual.latencies)
        print(
            f"\n{TIMES} times {capacity:,.0f} requests/s for {scale.overload_seconds:.0f} s: "
            f"{len(heavy.admitted) / heavy.seconds:,.0f} answered a second, their p99 is {ratio:.2f} of that at 80 %; "
            f"RSS {growth:+,.0f} MiB"
        )
        return {"overload_p99_vs_80": ratio, "overload_rss_mib": max(0.0, growth)}


def _answered(measured: Measured) -> Measured:
    others = measured.statuses[measured.statuses != 200]
    if len(others):
        raise SystemExit(f"{len(others)} of {len(measured.statuses)} answers had status {others[0]}, expected 200")
    return measured


def serving(table: Table, scale: Scale) -> dict[str, float]:
    """Measure all hit rates in turn, round by round, and the overload; print medians over the rounds."""
    requests = Requests(table, scale.memory_bytes, open_files(table.folder).page_format.page_bytes)
    results: dict[tuple[float, str], list[float]] = defaultdict(list)
    with Server(table.folder, scale.memory_bytes) as server, on_core(0):
        bench = Bench(server, requests, scale)
        for round_number in range(scale.rounds):
            for hit_rate in HIT_RATES:
                for name, value in bench.round(hit_rate, round_number).items():
                    results[hit_rate, name].append(value)
        overload = bench.overload()
    median = {key: statistics.median(values) for key, values in results.items()}
    columns = ("p50 alone", "p99 alone", "p50 at 50 %", "p99 at 50 %", "p50 at 80 %", "p99 at 80 %")
    print(f"\n{NUM_KEYS:,} keys per request; ms, except in the first columns")
    print(f"{'hit rate':>8} {'read back':>9} {'requests/s':>10} " + " ".join(f"{column:>12}" for column in columns))
    for hit_rate in HIT_RATES:
        first = f"{hit_rate:8.0%} {median[hit_rate, 'hit rate']:9.2%} {median[hit_rate, 'capacity']:10,.0f}"
        print(first, " ".join(f"{1000 * median[hit_rate, column]:12.2f}" for column in columns))
    return overload | {
        "p50_ms": 1000 * median[JUDGED, "p50 alone"],
        "p99_ms": 1000 * median[JUDGED, "p99 alone"],
        "p99_50_ms": 1000 * median[JUDGED, "p99 at 50 %"],
    }
