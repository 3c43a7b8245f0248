"""Times of collectives on one machine, by bytes: `world` ends of one group, each in a thread of this process."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.scaling.inputs import Link
from pipeline.comm.group import Group, GroupSettings, Store
from pipeline.records import Rank

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
"""Numbers of bytes that a worker sends to others."""
REPEATS = 30


def collectives(world: int, repeats: int = REPEATS) -> dict[str, dict[int, float]]:
    """Median seconds of a collective, by name and by number of bytes that one worker sends."""
    store, name = Store("127.0.0.1", serves=True), uuid.uuid4().hex

    def one(rank: int) -> dict[str, dict[int, float]]:
        group = Group(Store("127.0.0.1", store.port), name, Rank(rank, world), GroupSettings("lo"))
        return {
            "all_to_all": {size: _all_to_all(group, size, repeats) for size in SIZES},
            "all_reduce": {size: _all_reduce(group, size, repeats) for size in SIZES},
        }

    with ThreadPoolExecutor(world) as threads:
        return next(iter(threads.map(one, range(world))))


def link_of(seconds: dict[int, float], world: int) -> Link:
    """Link of the scaling model: a straight line through the smallest and the largest size of an all_to_all."""
    minimum, maximum = min(seconds), max(seconds)
    bytes_per_s = (maximum - minimum) / max(1e-9, seconds[maximum] - seconds[minimum])
    return Link(bytes_per_s, max(0.0, seconds[minimum] - minimum / bytes_per_s) / (world - 1), on_cores=True)


def _all_to_all(group: Group, size: int, repeats: int) -> float:
    words = size // 4 // (group.world - 1)
    parts = [0 if rank == group.rank else words for rank in range(group.world)]
    send, receive = torch.zeros(sum(parts)), torch.zeros(sum(parts))
    return _median(lambda: group.all_to_all(send, parts, receive, parts, "rows"), repeats)


def _all_reduce(group: Group, size: int, repeats: int) -> float:
    tensor = torch.zeros(size // 4)
    return _median(lambda: group.all_reduce(tensor, "dense"), repeats)


def _median(call: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
