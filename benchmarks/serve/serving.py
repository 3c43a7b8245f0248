"""Latencies of `pipeline serve` at several hit rates of its cache, compared with the unavoidable parts of a request."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from benchmarks.serve.limits import READERS, BareReads, dense_alone, queued
from benchmarks.serve.load import F64, Measured, Steal, closed_loop, load, p99, poisson
from benchmarks.serve.requests import NUM_KEYS, Requests
from benchmarks.serve.servables import Table
from benchmarks.serve.server import Server, on_core
from pipeline.serving.servable import open_files

HIT_RATES = (0.0, 0.9, 0.95, 0.99)
LOADS = (0.5, 0.8)
JUDGED = 0.95
STOLEN = 0.02
"""A round does not count if steal reaches this share while the judged hit rate is measured."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the measurement."""

    memory_bytes: int = 256 << 20
    rounds: int = 5
    closed: int = 300
    """Requests of a closed loop, and of each part alone."""
    seconds: float = 10.0
    """Length of an open loop."""
    overload_seconds: float = 60.0


Results = dict[tuple[float, str], list[float]]
"""Figures of the rounds, by hit rate and name."""


def serving(table: Table, scale: Scale) -> dict[str, float]:
    """Measure all hit rates in turn, round by round, and print the results."""
    opened = open_files(table.folder)
    requests = Requests(table, scale.memory_bytes, opened.page_format.page_bytes)
    results: Results = defaultdict(list)
    steal, stolen = Steal(), []
    dense = dense_alone(opened)
    with closing(BareReads(opened)) as reads, Server(table.folder, scale.memory_bytes) as server, on_core(0):
        bench = Bench(server, requests, scale)
        for round_number in range(scale.rounds):
            for hit_rate in HIT_RATES:
                steal.look()
                found = bench.round(hit_rate, round_number)
                if hit_rate == JUDGED:
                    parts = bench.parts(reads, dense, found["capacity"], round_number)
                    found |= parts
                    stolen.append(steal.look())
                for name, value in found.items():
                    results[hit_rate, name].append(value)
            said = f"{1000 * results[JUDGED, 'p99 at 50 %'][-1]:.1f} ms p99 at 95 % and half of the load"
            print(f"round {round_number + 1}: {said}, steal {stolen[-1]:.1%}", flush=True)
    counted = [n for n, share in enumerate(stolen) if share < STOLEN]
    if not counted:
        print(f"no round had a steal below {STOLEN:.0%}: all count")
        counted = list(range(scale.rounds))
    return report({key: [values[n] for n in counted] for key, values in results.items()}, len(counted))


class Bench:
    """A server, and the requests that it gets."""

    def __init__(self, server: Server, requests: Requests, scale: Scale) -> None:
        self._server, self._requests, self._scale = server, requests, scale
        closed_loop(server.address, requests.warming(), len(requests.warming()))

    def closed(self, hit_rate: float, connections: int, count: int, timeout: int | None = None) -> Measured:
        bodies = self._requests.bodies(count, hit_rate, timeout)
        return closed_loop(self._server.address, bodies, count, connections)

    def open(self, hit_rate: float, moments: F64, timeout: int | None = None) -> Measured:
        return load(self._server.address, self._requests.bodies(len(moments), hit_rate, timeout), moments)

    def round(self, hit_rate: float, round_number: int) -> dict[str, float]:
        """Figures for one hit rate: cached keys, capacity in requests per second, and seconds."""
        count = self._scale.closed
        self.closed(hit_rate, 4, max(10, count // 10))
        hit, missed, pages = self._server.keys()
        all_busy = self.closed(hit_rate, 4, count)
        _check(all_busy, 200)
        capacity = count / all_busy.seconds
        alone = self.closed(hit_rate, 1, count)
        found = {
            "capacity": capacity,
            "p50 alone": float(np.median(alone.latencies)),
            "p99 alone": p99(alone.latencies),
        }
        sent = 2 * count
        for share in LOADS:
            measured = self.open(hit_rate, poisson(share * capacity, self._scale.seconds, round_number))
            _check(measured, 200)
            sent += len(measured.latencies)
            at = f"at {100 * share:.0f} %"
            found[f"p50 {at}"], found[f"p99 {at}"] = float(np.median(measured.latencies)), p99(measured.latencies)
            found[f"late {at}"] = p99(measured.late)
        hit_after, missed_after, pages_after = self._server.keys()
        keys = hit_after - hit + missed_after - missed
        return found | {
            "hit rate": (hit_after - hit) / keys, "keys": keys / sent, "pages": (pages_after - pages) / sent,
        }  # fmt: skip

    def parts(
        self, reads: BareReads, dense: Callable[[], float], capacity: float, round_number: int
    ) -> dict[str, float]:
        """Figures of the parts alone, at the judged hit rate, and of a queue in front of their sum."""
        count = self._scale.closed
        empty = self.closed(JUDGED, 1, count, timeout=1)
        _check(empty, 504)
        with on_core(1):
            single = np.array([reads.seconds(self._requests.missed_pages(JUDGED), 1) for _ in range(count)])
            several = np.array([reads.seconds(self._requests.missed_pages(JUDGED), READERS) for _ in range(count)])
            computed = np.array([dense() for _ in range(count)])
        read = single if p99(single) < p99(several) else several
        found = {
            "empty": p99(empty.latencies), "preadv": p99(single), f"preadv, {READERS} threads": p99(several),
            "dense": p99(computed), "sum": p99(empty.latencies) + p99(read) + p99(computed),
        }  # fmt: skip
        services = empty.latencies + read + computed
        for name, seconds in (("empty", empty.latencies), ("preadv", read), ("dense", computed)):
            found[f"p50 of {name}"] = float(np.median(seconds))
        for share in LOADS:
            moments = poisson(share * capacity, self._scale.seconds, round_number)
            latencies = queued(moments, np.resize(services, len(moments)))
            found[f"queue at {100 * share:.0f} %"] = p99(latencies)
        return found


def _check(measured: Measured, status: int) -> None:
    others = measured.statuses[measured.statuses != status]
    if len(others):
        raise SystemExit(f"{len(others)} of {len(measured.statuses)} answers had status {others[0]}, expected {status}")


def report(results: Results, num_rounds: int) -> dict[str, float]:
    """Print medians over the rounds, and return the ratios."""
    median = {key: statistics.median(values) for key, values in results.items()}
    print(f"\nserving {NUM_KEYS:,} keys per request: medians of {num_rounds} rounds, ms except in the first columns")
    columns = ("p50 alone", "p99 alone", "p50 at 50 %", "p99 at 50 %", "p50 at 80 %", "p99 at 80 %", "late at 80 %")
    print(f"{'hit rate':>8} {'read back':>9} {'keys':>6} {'pages':>6} {'requests/s':>10} {_line(columns)}")
    for hit_rate in HIT_RATES:
        own = {name: value for (rate, name), value in median.items() if rate == hit_rate}
        first = (
            f"{hit_rate:8.0%} {own['hit rate']:9.2%} {own['keys']:6,.0f} {own['pages']:6,.0f} {own['capacity']:10,.0f}"
        )
        print(f"{first} {_line([f'{1000 * own[name]:.2f}' for name in columns])}")
    own = {name: value for (rate, name), value in median.items() if rate == JUDGED}
    parts = ("empty", "preadv", f"preadv, {READERS} threads", "dense", "sum", "queue at 50 %", "queue at 80 %")
    print(f"p99 of the parts alone, at {JUDGED:.0%}, in ms: " + ", ".join(f"{n} {1000 * own[n]:.2f}" for n in parts))
    halves = [own[f"p50 of {name}"] for name in ("empty", "preadv", "dense")]
    print(f"p50 of the same: empty {1000 * halves[0]:.2f}, preadv {1000 * halves[1]:.2f}, dense {1000 * halves[2]:.2f}")
    print(f"   p50 alone: {own['p50 alone'] / sum(halves):.2f} of the sum of their p50s")
    ratios = {f"hit_rate_{rate:.2f}": median[rate, "hit rate"] for rate in HIT_RATES}
    for name, column in (("alone", "p99 alone"), ("50", "p99 at 50 %"), ("80", "p99 at 80 %")):
        ratios[f"p99_{name}_vs_sum"] = own[column] / own["sum"]
        print(f"   {column}: {ratios[f'p99_{name}_vs_sum']:.2f} of the sum of their p99s (aim: at most 1.5)")
        ratios[f"p99_{name}_ms"] = 1000 * own[column]
    for share in ("50", "80"):
        ratios[f"p99_{share}_vs_queue"] = own[f"p99 at {share} %"] / own[f"queue at {share} %"]
        ratio = ratios[f"p99_{share}_vs_queue"]
        print(f"   p99 at {share} %: {ratio:.2f} of a queue before that sum, at the same moments")
    print(f"   p99 at 50 %: {ratios['p99_50_ms']:.1f} ms (aim: at most 10)")
    return ratios | {"p50_alone_vs_sum": own["p50 alone"] / sum(halves)}


def _line(columns: Sequence[str]) -> str:
    return " ".join(f"{column:>12}" for column in columns)
