"""Our CPU kernels compared with pandas and torch, and with plain copies of memory.

"1t" is one thread, "2t" (or more) all cores. Ratios are our speed divided by theirs, medians of interleaved repeats.
`_1t`: ours with one thread; otherwise with all cores, like theirs if they can use them. The C allocator is set as in a
run, so that neither side pays for page faults of fresh memory. pandas is omitted if it is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.common import arguments, finish, machine
from benchmarks.kernels.cases import LAYOUT, NOISE_BYTES, Case, zipf_keys
from benchmarks.kernels.dedup import dedup_case, index_of_batch
from benchmarks.kernels.rows import adam_case, move_cases, segment_sum_case
from pipeline.machine.process import keep_freed_memory

ROUNDS = 5
"""Repeats of a run per unit of `--repeats`, since a run takes only milliseconds."""


@dataclass(frozen=True)
class Scale:
    """Sizes of everything; a quick run only shows that it works, its speeds mean nothing."""

    examples: int = 131_072
    block_batches: int = 16
    slab_rows: int = 4_000_000
    moved_rows: int = 300_000
    adam_rows: int = 2_000_000


QUICK = Scale(2_048, 4, 20_000, 2_000, 20_000)


def run(scale: Scale, measured: Callable[[Case], None]) -> None:
    """Measure the cases one after another, each with only its own data in memory."""
    keys_V = zipf_keys(scale.examples)
    measured(dedup_case(keys_V))
    index = index_of_batch(keys_V, scale.block_batches)
    measured(segment_sum_case(index, LAYOUT.num_fields))
    measured(adam_case(scale.adam_rows, index))
    for case in move_cases(scale.slab_rows, scale.moved_rows):
        measured(case)


def main() -> None:
    args = arguments("kernels", __doc__ or "")
    print(machine())
    keep_freed_memory()
    repeats = 2 if args.quick else ROUNDS * args.repeats
    noise = np.ones(1 << 20 if args.quick else NOISE_BYTES, np.uint8)
    ratios: dict[str, float] = {}

    def measured(case: Case) -> None:
        case.measure(repeats, noise)
        case.report()
        ratios.update(case.found())

    run(QUICK if args.quick else Scale(), measured)
    finish(args, ratios)


if __name__ == "__main__":
    main()
