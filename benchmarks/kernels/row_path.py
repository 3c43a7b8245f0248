"""The row path of a step as a table: bytes moved and random places of each operation, its time, and its bound.

A batch of 8,192 examples with 26 fields of Zipf keys, D = 16, Adam, a slab of 4 M rows: look up the weights of unique
keys, pool them to embeddings, sum gradients by key, update rows. The bound of an operation is

    bytes / copy bandwidth + random places * latency / misses in flight

with the same number of threads. A place is a point where reading jumps to a line other than the next; the lines after
it count only as bytes. Latency is measured with a chain of dependent reads, misses in flight with independent reads,
both in an array as large as the one that the operation reads at random. The caches are filled with other data before an
operation and before such reads, except for `pool`, whose weights were just looked up. Times are the minimum of many
repeats: CPU time for one thread, wall time for several, to which other processes can only add. Figures are multiples of
the bound; the aim is 1.5.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.cases import DIM
from benchmarks.common import arguments, finish, machine
from benchmarks.kernels.cases import ALL_CORES, LAYOUT, NOISE_BYTES, THREADS, zipf_keys
from benchmarks.kernels.dedup import index_of_batch
from benchmarks.kernels.limits import chase_lines, read_lines_only
from benchmarks.kernels.rows import ROW, SETS, filled, random_slots
from pipeline.kernels.pool import lookup, pool_singles
from pipeline.kernels.row_rules import ADAM, adam_size
from pipeline.kernels.segment_sum import segment_sum
from pipeline.kernels.update_rows import update_rows
from pipeline.machine.process import keep_freed_memory
from pipeline.machine.threads import Threads
from pipeline.records import F32, I32, TILE, U32, BatchIndex
from pipeline.storage.layout import WEIGHTS_AT

EXAMPLES, BATCHES, SLAB_ROWS, REPEATS = 8192, 16, 4_000_000, 20
QUICK = 256, 4, 20_000, 1
COPIED_BYTES, ASKED_LINES = 64 << 20, 200_000
Work = Callable[[int, int, int], object]
"""Function that processes items `begin` to `end` - 1 of a repeat."""


@dataclass
class Operation:
    """One operation of the row path, on a whole batch."""

    name: str
    items: int
    work: Work
    num_bytes: int
    """Bytes read and written, each counted once."""
    places: Mapping[int, int]
    """Number of random places read in arrays, by size of the array in bytes."""
    before: Callable[[int], object] | None = None
    """Operation whose output this one reads; it runs untimed before this one."""


class Timer:
    """Minimum seconds of many runs of work, divided among threads as in a step."""

    def __init__(self, repeats: int, noise_bytes: int) -> None:
        self._repeats, self._noise = repeats, np.ones(noise_bytes, np.uint8)

    def seconds(self, items: int, work: Work, threads: Threads, before: Callable[[int], object] | None = None) -> float:
        """`before`: function called before each repeat, instead of filling the caches with other data after the
        previous one."""
        clock, times = time.thread_time if threads.num_threads == 1 else time.perf_counter, []
        for repeat in range(self._repeats + 1):
            if before:
                before(repeat)
            else:
                self._noise += 1
            start = clock()
            threads.split(items, lambda a, b, r=repeat: work(r, a, b))
            times.append(clock() - start)
        # The first run compiles.
        return min(times[1:])


class Memory:
    """Measured speed of this machine's memory, by number of threads."""

    def __init__(self, timer: Timer, quick: bool) -> None:
        self._timer, self._shift = timer, 8 if quick else 0

    @functools.cache  # noqa: B019
    def bandwidth(self, threads: Threads) -> float:
        """Bytes read and written per second by a plain copy."""
        source, into = (filled(COPIED_BYTES >> self._shift, 1, np.uint8, value)[:, 0] for value in (1, 2))
        seconds = self._timer.seconds(len(source), lambda r, a, b: np.copyto(into[a:b], source[a:b]), threads)
        return 2 * len(source) / seconds

    @functools.cache  # noqa: B019
    def line(self, table_bytes: int, threads: Threads, cached: bool) -> tuple[float, float]:
        """Latency, in seconds, of a random line of an array of this size in bytes, and misses in flight. `cached`: True
        if the array was just read."""
        rng = np.random.default_rng(0)
        words_L = np.zeros(1 << (table_bytes // 8 - 1).bit_length(), np.uint64)
        num_lines, asked = len(words_L) // 8, ASKED_LINES >> self._shift
        order = rng.permutation(num_lines).astype(np.uint64) * np.uint64(8)
        words_L[order] = np.roll(order, -1)
        steps, before = min(asked, num_lines), (lambda r: words_L.sum()) if cached else None
        chase: Work = lambda r, a, b: chase_lines(words_L, int(order[r]), steps)  # noqa: E731
        latency = self._timer.seconds(1, chase, THREADS[1], before) / steps
        keys_U = rng.integers(0, 2**62, asked).astype(np.uint64) * np.uint64(8)
        each = self._timer.seconds(asked, lambda r, a, b: read_lines_only(words_L, keys_U[a:b]), threads, before)
        return latency, latency / (each / asked)

    def bound(self, one: Operation, threads: Threads) -> float:
        seconds = one.num_bytes / self.bandwidth(threads)
        for table_bytes, places in one.places.items():
            latency, in_flight = self.line(table_bytes, threads, one.before is not None)
            seconds += places * latency / in_flight
        return seconds


def operations(index: BatchIndex, num_examples: int, slab_rows: int) -> list[Operation]:
    fields, keys, values = LAYOUT.num_fields, len(index.unique_P), len(index.inverse_V)
    words_SW: U32 = filled(slab_rows, ROW.num_words, np.uint32, 0)
    floats_SW = words_SW.view(np.float32)
    slots = random_slots(slab_rows, keys)
    weights_PC, sums_PC = (filled(keys, DIM + 1, np.float32, 0) for _ in range(2))
    embeddings_BFD: F32 = filled(num_examples, fields * DIM, np.float32, 0).reshape(num_examples, fields, DIM)
    first_BF: F32 = filled(num_examples, fields, np.float32, 0)
    grads_GD, first_G = embeddings_BFD.copy().reshape(-1, DIM), first_BF.copy().reshape(-1)
    single_S: I32 = np.array(LAYOUT.single_S, np.int32)
    rates_T4 = np.array([(0, 0, 0, 0), (adam_size(0.01, 0.9, 0.999, 1), 1e-8, 0, 1)], np.float32)
    settings = np.float32(0.1), np.float32(0.001), np.float32(0), np.float32(0)
    none = np.empty(0, np.float32)

    def look_up(repeat: int, a: int, b: int) -> None:
        lookup(floats_SW, floats_SW[:0], slots[repeat % SETS][a:b], WEIGHTS_AT, weights_PC[a:b])

    def pool(repeat: int, a: int, b: int) -> None:
        pool_singles(weights_PC, index.inverse_V, single_S, a, b, embeddings_BFD, first_BF)

    def sum_gradients(repeat: int, a: int, b: int) -> None:
        starts_P = index.starts_P[a : b + 1]
        segment_sum(grads_GD, first_G, index.source_V, starts_P, none, TILE * fields, sums_PC[a:b])

    def update(repeat: int, a: int, b: int) -> None:
        update_rows(
            ADAM, floats_SW, words_SW, WEIGHTS_AT, ROW.last_step_at, slots[repeat % SETS][a:b], sums_PC[a:b],
            index.starts_P[a : b + 1], DIM, 1, rates_T4, settings, False,
        )  # fmt: skip

    row, weights, slab = 4 * ROW.num_words, 4 * (DIM + 1), words_SW.nbytes
    return [
        Operation("look up", keys, look_up, keys * (4 + 2 * weights), {slab: keys}),
        Operation(
            "pool", num_examples, pool, values * (4 + 2 * weights), {weights_PC.nbytes: values},
            before=lambda repeat: look_up(repeat, 0, keys),
        ),
        Operation(
            "sum", keys, sum_gradients, values * (4 + weights) + keys * (4 + weights),
            {grads_GD.nbytes: values, first_G.nbytes: values},
        ),
        Operation("update", keys, update, keys * (8 + weights + 2 * row), {slab: keys}),
    ]  # fmt: skip


def main() -> None:
    args = arguments("kernels.row_path", __doc__ or "")
    print(machine())
    keep_freed_memory()
    num_examples, batches, slab_rows, repeats = QUICK if args.quick else (EXAMPLES, BATCHES, SLAB_ROWS, REPEATS)
    timer = Timer(repeats * (1 if args.quick else args.repeats), NOISE_BYTES >> (8 if args.quick else 0))
    memory = Memory(timer, args.quick)
    index = index_of_batch(zipf_keys(num_examples * batches), batches)
    path = operations(index, num_examples, slab_rows)
    print(f"{num_examples:,} examples, {len(index.inverse_V):,} values, {len(index.unique_P):,} unique keys")
    figures: dict[str, float] = {}
    for num, threads in THREADS.items():
        print(f"\n{num} threads: a copy moves {memory.bandwidth(threads) / 1e9:.1f} GB/s")
        print(f"{'':10} {'MB':>6} {'places':>9} {'ns, in flight':>24} {'bound ms':>9} {'ms':>7} {'times':>6}")
        for one in path:
            lines = [memory.line(size, threads, one.before is not None) for size in one.places]
            costs = "; ".join(f"{1e9 * latency:.0f}, {in_flight:.0f}" for latency, in_flight in lines)
            bound, took = memory.bound(one, threads), timer.seconds(one.items, one.work, threads, one.before)
            suffix = "" if num == ALL_CORES else "_1t"
            figures[f"{one.name.replace(' ', '_')}_vs_bound{suffix}"] = took / bound
            print(
                f"{one.name:10} {one.num_bytes / 1e6:6.1f} {sum(one.places.values()):9,} {costs:>24} "
                f"{1e3 * bound:9.3f} {1e3 * took:7.3f} {took / bound:6.2f}",
                flush=True,
            )
    finish(args, figures)


if __name__ == "__main__":
    main()
