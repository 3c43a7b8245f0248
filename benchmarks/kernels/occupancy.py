"""Registers, shared memory and occupancy of every CUDA kernel, with no GPU present, and the time of an H100's memory.

Registers and shared memory are those assigned by `ptxas`. Occupancy: number of threads that a multiprocessor runs
concurrently, relative to its maximum. Bytes: the bytes of every array that the kernel reads and writes for one batch,
each counted once, without other bytes of the same cache line and without savings by caches. No kernel is faster than
the time to move these bytes.
"""

from __future__ import annotations

import numpy as np

from benchmarks.common import arguments, finish
from benchmarks.kernels.cases import LAYOUT, zipf_keys
from benchmarks.kernels.ptx import GPUS, SIGNATURES, assemble, blocks_at_once, kernels, ptx
from pipeline.kernels.row_rules import RULE_NUMBERS
from pipeline.kernels.segment_sum import LONG
from pipeline.storage.layout import WEIGHTS_AT, RowLayout

EXAMPLES = 8_192
DIM = 16
WIDTH = DIM + 1
ROW_BYTES = 4 * RowLayout(DIM, True).num_words
H100_BYTES_PER_SECOND = 3.35e12


def bytes_of(values: int, unique: int, long_keys: int, long_values: int) -> dict[str, int]:
    """Bytes that each kernel must move for a batch of `values` values of `unique` keys, of which `long_keys` have
    `long_values` values and are summed by blocks. All rows are new to the device, or stale, where that matters."""
    weights, gradients = 4 * WIDTH * unique, 4 * WIDTH * values
    # One int32 per value or key: its row, its slot, its number, the start of its values.
    ints_V, ints_U = 4 * values, 4 * unique
    bags = 4 * LAYOUT.num_fields * (EXAMPLES + 1)
    narrow = RowLayout(DIM, True, formats=("bfloat16",) * 3).num_bytes * unique
    # Weights and state, which are updated in place.
    changed = {rule: 2 * 4 * (RowLayout(DIM, True, rule).last_step_at - WEIGHTS_AT) * unique for rule in RULE_NUMBERS}
    return {
        "rows.gather_cuda": 2 * ROW_BYTES * unique + ints_U,
        "rows.scatter_cuda": 2 * ROW_BYTES * unique + ints_U,
        "pool.lookup_cuda": 2 * weights + ints_U,
        "pool.pool_singles_cuda": weights + ints_V + gradients,
        "pool.pool_bags_cuda": weights + ints_V + bags + gradients,
        "segment_sum.short_sums_cuda": (4 * WIDTH + 4) * (values - long_values)
        + ints_U
        + 4 * WIDTH * (unique - long_keys),
        "segment_sum.long_sums_cuda": (4 * WIDTH + 4) * long_values + ints_U + 4 * WIDTH * long_keys,
        **{f"update_rows.update_rows_cuda[{rule}]": count + weights + 5 * ints_U for rule, count in changed.items()},
        "update_rows.clip_gradients_cuda": 3 * weights + ints_U + unique,
        **{f"catch_up.catch_up_cuda[{rule}]": changed[rule] + 2 * ints_U for rule in ("sgd", "adagrad", "adam")},
        "catch_up.catch_up_rowwise_cuda": changed["rowwise_adagrad"] + 3 * ints_U,
        "catch_up.mark_cuda": 3 * ints_U,
        "narrow_rows.widen_cuda": narrow + ROW_BYTES * unique + ints_U,
        "narrow_rows.narrow_cuda": narrow + ROW_BYTES * unique + ints_U,
        "init_rows.clear_unused_cuda": weights + 3 * ints_U,
        "requests.count_examples_cuda": ints_V + 2 * ints_U,
        "dedup_cuda.insert_keys": 8 * values + ints_V + (2 * 8 + 4) * unique,
        "dedup_cuda.find_first": ints_V + 2 * ints_U,
        "dedup_cuda.mark_first": ints_V + ints_U + values,
        "dedup_cuda.keep_firsts": 2 * ints_V + (2 * 8 + 4) * unique,
        "dedup_cuda.look_up_number": 2 * ints_V + ints_U,
        "dedup_cuda.tile_of": 2 * ints_V + bags,
        "dedup_cuda.group_values": (8 + 2 * 4) * values + bags + ints_U,
    }


def main() -> None:
    args = arguments("kernels.occupancy", __doc__ or "")
    _, counts_U = np.unique(zipf_keys(EXAMPLES), return_counts=True)
    values, unique = int(counts_U.sum()), len(counts_U)
    long_U = counts_U > LONG
    moved = bytes_of(values, unique, int(long_U.sum()), int(counts_U[long_U].sum()))
    print(f"{EXAMPLES:,} examples of {LAYOUT.num_fields} fields, {unique:,} keys, D = {DIM}\n")
    print("| kernel | threads a block | registers 8.0 / 9.0 | shared bytes | occupancy 8.0 / 9.0 | MB | us |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    most_registers, least_occupancy, most_stack = 0.0, 1.0, 0.0
    for name in list(SIGNATURES)[:: 12 if args.quick else 1]:
        threads, _ = kernels()[name].targetoptions["launch_bounds"]
        # A kernel that is launched with several types of arrays is shown with the first.
        found = {gpu: assemble(ptx(name, SIGNATURES[name][0], gpu), gpu) for gpu in GPUS}
        occupancies = [blocks_at_once(found[gpu], threads, GPUS[gpu]) * threads / GPUS[gpu].threads for gpu in GPUS]
        print(
            f"| {name.split('.')[1]} | {threads:,} | {' / '.join(str(kernel.registers) for kernel in found.values())} "
            f"| {found[9, 0].shared_bytes:,} | {' / '.join(f'{100 * share:.0f} %' for share in occupancies)} "
            f"| {moved[name] / 1e6:.1f} | {1e6 * moved[name] / H100_BYTES_PER_SECOND:.1f} |",
            flush=True,
        )
        most_registers = max(most_registers, *(float(kernel.registers) for kernel in found.values()))
        most_stack = max(most_stack, *(float(kernel.stack_bytes + kernel.spilled_bytes) for kernel in found.values()))
        least_occupancy = min(least_occupancy, *occupancies)
    finish(args, {"most_registers": most_registers, "most_stack": most_stack, "least_occupancy": least_occupancy})


if __name__ == "__main__":
    main()
