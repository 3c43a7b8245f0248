"""Comparison of kernels: the runs of a case take turns, each after the caches were filled with other data.

A case has runs by name, such as "ours 1t" and "torch 2t"; another device can add runs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.cases import CARDINALITIES
from pipeline.data.synthetic import draw_keys
from pipeline.kernels.hashing import hash_integers, table_salt
from pipeline.machine.threads import Threads
from pipeline.records import U64, Block, Examples, FieldLayout

ALL_CORES = os.cpu_count() or 1
THREADS = {num: Threads(num, "kernels") for num in {1, ALL_CORES}}
LAYOUT = FieldLayout(tuple(range(len(CARDINALITIES))), (), ())
ZIPF = 1.1
"""Zipf exponent with which a batch of 131,072 examples of Criteo's 26 fields has 296,497 unique keys."""
NOISE_BYTES = 96 << 20

Run = Callable[[int], object]
"""Function that does the work. Its argument is the number of the repeat, so that it can use other rows each time."""


@dataclass
class Case:
    """One operation on one input, done by several runs; `ratios`: name -> (run of theirs, run of ours)."""

    name: str
    unit: str
    count: int
    """Number of units of work in one run."""
    runs: dict[str, Run]
    ratios: Mapping[str, tuple[str, str]]
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def measure(self, repeats: int, noise: np.ndarray) -> None:
        """Measure all runs. The first repeat is not counted: it compiles kernels, starts threads, grows workspaces."""
        for repeat in range(repeats + 1):
            for name, run in self.runs.items():
                noise += 1
                start = time.perf_counter()
                run(repeat)
                self.times[name].append(time.perf_counter() - start)
        for name in self.runs:
            self.times[name].pop(0)

    def median(self, name: str) -> float:
        return statistics.median(self.times[name])

    def report(self) -> None:
        print(f"\n{self.name}: ms [least .. most], ns per {self.unit}")
        for name, times in self.times.items():
            extremes = f"[{1000 * min(times):,.2f} .. {1000 * max(times):,.2f}]"
            median = self.median(name)
            print(f"  {name:34} {1000 * median:9.2f} {extremes:22} {1e9 * median / self.count:9.2f}", flush=True)

    def found(self) -> dict[str, float]:
        """Ratios of our speed to theirs, for the libraries that are installed."""
        return {
            ratio: self.median(theirs) / self.median(ours)
            for ratio, (theirs, ours) in self.ratios.items()
            if theirs in self.times and ours in self.times
        }


def all_cores(name: str) -> str:
    """Name of a run with all cores."""
    return f"{name} {ALL_CORES}t"


def vs(name: str, peer: str) -> dict[str, tuple[str, str]]:
    """Ratios to a peer that uses as many threads as ours."""
    return {f"{name}_1t": (f"{peer} 1t", "ours 1t"), name: (all_cores(peer), all_cores("ours"))}


def by_threads(name: str, run: Callable[[Threads, int], object]) -> dict[str, Run]:
    """Make a run with one thread and one with all cores."""
    return {f"{name} {num}t": lambda repeat, t=threads: run(t, repeat) for num, threads in THREADS.items()}


def zipf_keys(num_examples: int) -> U64:
    """Keys of one batch, field by field, as `read` produces them."""
    rng = np.random.Generator(np.random.SFC64(0))
    keys_V = np.empty((len(CARDINALITIES), num_examples), np.uint64)
    for f, cardinality in enumerate(CARDINALITIES):
        hash_integers(draw_keys(rng, num_examples, cardinality, ZIPF), table_salt(f"c{f}"), keys_V[f])
    return keys_V.reshape(-1)


def as_block(keys_V: U64, num_batches: int) -> Examples:
    """The same keys as a block of batches, in a separate array."""
    num_fields = len(CARDINALITIES)
    num_examples = len(keys_V) // num_fields
    size = num_examples // num_batches
    block = Block(
        number=0, split="train", epoch=0, first_batch=0, num_batches=num_batches, first_example=0,
        num_examples=num_examples, batch_size=size, first_step=0, closes_split=False,
    )  # fmt: skip
    by_batch = keys_V.reshape(num_fields, num_batches, size).transpose(1, 0, 2)
    return Examples(
        block=block, labels_NT=np.zeros((num_examples, 1), np.float32), weights_N=None,
        numbers_NX=np.zeros((num_examples, 0), np.float32), keys_V=np.ascontiguousarray(by_batch).reshape(-1),
        batch_starts=np.arange(num_batches + 1) * num_fields * size,
        bags=(np.zeros((0, size + 1), np.int32),) * num_batches, nbytes=0,
    )  # fmt: skip
