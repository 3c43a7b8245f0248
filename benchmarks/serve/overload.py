"""A server under four times the load that it can handle: its memory, and the latencies of admitted requests."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.serve.load import closed_loop, load, p99, poisson
from benchmarks.serve.requests import Requests
from benchmarks.serve.servables import Table
from benchmarks.serve.server import Server, on_core
from benchmarks.serve.serving import JUDGED, Scale
from pipeline.serving.servable import open_files

TIMES = 4
CONNECTIONS = 96
BODIES = 2_000
"""Number of different requests. The walk through the pages is longer than this number times the pages of a request."""
SETTLED_SECONDS = 3.0


def overload(table: Table, scale: Scale) -> dict[str, float]:
    """Send four times the capacity, and print the outcome."""
    opened = open_files(table.folder)
    requests = Requests(table, scale.memory_bytes, opened.page_format.page_bytes, seed=1)
    with Server(table.folder, scale.memory_bytes) as server, on_core(0):
        closed_loop(server.address, requests.warming(), len(requests.warming()))
        bodies = requests.bodies(min(BODIES, 10 * scale.closed), JUDGED)
        closed_loop(server.address, bodies, scale.closed, 4)
        capacity = scale.closed / closed_loop(server.address, bodies, scale.closed, 4).seconds
        usual = load(server.address, bodies, poisson(0.8 * capacity, scale.seconds, 0))
        before = server.memory("VmRSS")
        heavy = load(server.address, bodies, poisson(TIMES * capacity, scale.overload_seconds, 1), CONNECTIONS)
        time.sleep(SETTLED_SECONDS)
        after = server.memory("VmRSS")
        again = load(server.address, bodies, poisson(0.8 * capacity, scale.seconds, 2))
    admitted = heavy.admitted
    statuses = dict(zip(*[found.tolist() for found in np.unique(heavy.statuses, return_counts=True)], strict=True))
    print(
        f"\noverload: {TIMES} times {capacity:,.0f} requests/s for {scale.overload_seconds:.0f} s, statuses {statuses}"
    )
    sent, answered = len(heavy.statuses) / heavy.seconds, len(admitted) / heavy.seconds
    print(f"   sent {sent:,.0f}/s, late by {1000 * p99(heavy.late):,.1f} ms (p99); answered {answered:,.0f}/s")
    print(
        f"   p99 at 80 %: {1000 * p99(usual.latencies):,.1f} ms before, {1000 * p99(again.latencies):,.1f} afterwards"
    )
    ratio = p99(admitted) / p99(usual.latencies)
    started = p99((heavy.latencies - heavy.late)[heavy.statuses == 200])
    print(
        f"   p99 of the admitted: {1000 * p99(admitted):,.1f} ms ({1000 * started:,.1f} from the moment they were sent)"
    )
    print(f"   {ratio:.2f} of that at 80 % (aim: at most 3)")
    growth = (after - before) / 2**20
    print(f"   RSS {before / 2**20:,.0f} MiB before, {after / 2**20:,.0f} after: {growth:+,.0f} MiB (aim: at most 64)")
    return {
        "overload_p99_vs_80": ratio, "overload_p99_started_vs_80": started / p99(usual.latencies),
        "overload_answered_vs_capacity": answered / capacity,
        "overload_rss_mib": max(0.0, growth),
    }  # fmt: skip
