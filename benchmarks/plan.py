"""`plan` alone, on blocks of 283,000 keys: CPU time per key, and the gain from a second thread. And the key map at
200 M keys: the time to insert 280,000 more.

A block's keys are drawn from Zipf 1.15. In the case with many arrivals, as many are also drawn uniformly from 14 times
as many keys; the device holds three blocks and the host two. In the case with few arrivals, there are three times as
many keys as in a block; the device holds two blocks and the host one. Small blocks have 30,000 keys drawn from 4 M, of
which the device holds a tenth and the host a fifth. L = 2. Blocks until both tiers are full are not measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.common import arguments, finish
from benchmarks.policies.__main__ import ALL_ROWS, block_of
from pipeline.records import U64, Plan, Unique
from pipeline.stages.plan import RingRows, plan
from pipeline.storage.chunks import Chunks
from pipeline.storage.key_map import KeyMap
from pipeline.storage.places import Caps, Places
from pipeline.storage.plan_threads import PlanThreads

KEYS, QUICK_KEYS, MAP_KEYS, QUICK_MAP_KEYS = 283_000, 3_000, 200_000_000, 200_000
NEW_KEYS, INSERTS = 280_000, 80
SMALL_KEYS, QUICK_SMALL_KEYS = 30_000, 300
WARM, WARM_SMALL, BLOCKS, LOOK_AHEAD = 9, 130, 7, 2
"""Numbers of blocks that are not measured, in the two kinds of cases, and of blocks that are."""
MANY, FEW, SMALL = (14, 3, 2), (3, 2, 1), (133, 13, 27)
"""Number of keys from which blocks are drawn, and numbers of device and host slots, in units of a block's keys."""


def clocks(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of a call."""
    wall, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - spent


def planned_block(window: list[Unique], places: Places) -> None:
    assert isinstance(plan(window, places, RingRows(ALL_ROWS, ALL_ROWS)), Plan)


def planned(num_keys: int, of: tuple[int, int, int], warm: int, policy: str, threads: int) -> tuple[float, float]:
    """Nanoseconds per key: wall time of the median block, and CPU time."""
    space, device, host = (num_keys * times for times in of)
    places = Places(device, host, (policy, policy), Caps(2 * ALL_ROWS, ALL_ROWS), Chunks(64), threads)
    rng = np.random.default_rng(0)

    def keys() -> U64:
        zipf = rng.zipf(1.15, 6 * num_keys)
        drawn = np.union1d(zipf[zipf < space], rng.integers(0, space, num_keys))
        return rng.permutation(drawn)[:num_keys].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    blocks, times = [Unique(block_of(n), keys(), ()) for n in range(warm + BLOCKS + LOOK_AHEAD)], []
    for n in range(warm + BLOCKS):
        places.chunks.allowance = ALL_ROWS
        window = blocks[n : n + LOOK_AHEAD + 1]

        wall, spent = clocks(partial(planned_block, window, places))
        times.append((1e9 * wall / num_keys, 1e9 * spent / num_keys))
    walls, processor = zip(*times[warm:], strict=True)
    return statistics.median(walls), statistics.mean(processor)


def inserted(num_keys: int, num_threads: int) -> list[float]:
    """Milliseconds of each insertion of NEW_KEYS keys into a map of this size."""
    rng, key_map = np.random.default_rng(3), KeyMap(PlanThreads(num_threads))
    key_map.reserve(num_keys)
    part = max(1, num_keys // 100)

    def insert(number: int) -> float:
        keys_U, places_U = rng.integers(0, 1 << 63, number, dtype=np.uint64), np.arange(number)
        return 1e3 * clocks(lambda: key_map.insert(keys_U, places_U))[0]

    for _ in range(100):
        insert(part)
    return [insert(min(NEW_KEYS, part)) for _ in range(INSERTS)]


def main() -> None:
    args = arguments("plan", __doc__ or "")
    num_keys, map_keys = (QUICK_KEYS, QUICK_MAP_KEYS) if args.quick else (KEYS, MAP_KEYS)
    small_keys = QUICK_SMALL_KEYS if args.quick else SMALL_KEYS
    cases = {
        "clock": (num_keys, MANY, WARM, "clock"),
        "foresight": (num_keys, MANY, WARM, "foresight"),
        "few arrive": (num_keys, FEW, WARM, "clock"),
        "small blocks": (small_keys, SMALL, WARM_SMALL, "clock"),
    }
    figures: dict[str, float] = {}
    for name, case in cases.items():
        one, two = ([planned(*case, t) for _ in range(args.repeats)] for t in (1, 2))
        walls = [statistics.median(wall for wall, _ in runs) for runs in (one, two)]
        figures[f"{name} ns"] = statistics.median(spent for _, spent in one)
        figures[f"{name} two_vs_one"] = walls[0] / walls[1]
        print(f"{name:12} {figures[f'{name} ns']:6.0f} ns a key, two threads {walls[0] / walls[1]:.2f} as fast")
    for threads in (1, 2):
        found = inserted(map_keys, threads)
        figures |= {f"insert_ms {threads}": statistics.mean(found), f"longest_insert_ms {threads}": max(found)}
        print(f"{NEW_KEYS:,} new keys, {threads} threads: {statistics.mean(found):.0f} ms, at most {max(found):.0f}")
    finish(args, figures)


if __name__ == "__main__":
    main()
