"""Cases of work on rows, compared with torch or a plain copy: moving rows, summing their gradients, updating them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.cases import DIM
from benchmarks.kernels.cases import ALL_CORES, Case, Run, by_threads, vs
from pipeline.kernels.row_rules import ADAM, adam_size
from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.kernels.segment_sum import segment_sum
from pipeline.kernels.update_rows import update_rows
from pipeline.machine.limits import aligned_empty
from pipeline.machine.threads import Threads
from pipeline.records import F32, I32, TILE, U32, BatchIndex
from pipeline.storage.layout import WEIGHTS_AT, RowLayout

ROW = RowLayout(DIM, True)
SETS = 3
"""Number of sets of rows, used in turn so that a repeat does not find its rows in a cache."""


def random_slots(num_rows: int, count: int) -> list[I32]:
    rng = np.random.default_rng(0)
    return [rng.choice(num_rows, count, replace=False).astype(np.int32) for _ in range(SETS)]


def filled(num_rows: int, width: int, dtype: Any, value: int) -> Any:
    """Aligned array whose pages are all touched."""
    array = aligned_empty((num_rows, width), dtype)
    array[:] = value
    return array


def torch_runs(run: Run) -> dict[str, Run]:
    """Make a run of torch with one thread and one with all cores."""

    def with_threads(num: int) -> Run:
        def call(repeat: int) -> None:
            torch.set_num_threads(num)
            run(repeat)

        return call

    return {f"torch {num}t": with_threads(num) for num in sorted({1, ALL_CORES})}


def move_cases(num_rows: int, count: int) -> list[Case]:
    """Cases of moving rows of a table larger than any cache to and from a buffer, compared with a plain copy of as many
    bytes."""
    slab_SW: U32 = filled(num_rows, ROW.num_words, np.uint32, 1)
    out_UW, rows_UW = (filled(count, ROW.num_words, np.uint32, value) for value in (2, 3))
    slots = random_slots(num_rows, count)

    def move(kernel: Callable[..., object], rows_UW: U32) -> Callable[[Threads, int], object]:
        def run(threads: Threads, repeat: int) -> None:
            at_U = slots[repeat % SETS]
            threads.split(count, lambda a, b: kernel(slab_SW, at_U[a:b], rows_UW[a:b]))

        return run

    copies = by_threads(
        "copy", lambda threads, repeat: threads.split(count, lambda a, b: np.copyto(out_UW[a:b], rows_UW[a:b]))
    )
    return [
        Case(
            f"{name} {count:,} rows of {ROW.num_bytes} bytes, {num_rows:,} rows in all", "row", count,
            by_threads("ours", move(kernel, rows)) | copies, vs(f"{name}_vs_copy", "copy"),
        )
        for name, kernel, rows in (("gather", gather_rows, out_UW), ("scatter", scatter_rows, rows_UW))
    ]  # fmt: skip


def segment_sum_case(index: BatchIndex, num_fields: int) -> Case:
    """Case of summing the gradients of a batch's occurrences, with first-order weights, per unique key."""
    num_grads, num_keys = len(index.inverse_V), len(index.unique_P)
    rng = np.random.default_rng(0)
    grads_GD: F32 = filled(num_grads, DIM, np.float32, 0)
    grads_GD[:] = rng.normal(size=grads_GD.shape)
    first_G = rng.normal(size=num_grads).astype(np.float32)
    none, sums_PC = np.empty(0, np.float32), filled(num_keys, DIM + 1, np.float32, 0)

    def ours(threads: Threads, repeat: int) -> None:
        threads.split(
            num_keys,
            lambda a, b: segment_sum(
                grads_GD, first_G, index.source_V, index.starts_P[a : b + 1], none, TILE * num_fields, sums_PC[a:b]
            ),
        )

    runs = by_threads("ours", ours)
    runs["ours 1t"](0)
    # Torch's index is per gradient, in the order of examples, and of fields within an example.
    which_G = np.ascontiguousarray(index.inverse_V.reshape(num_fields, -1).T).reshape(-1).astype(np.int64)
    grads, first, which = map(torch.from_numpy, (grads_GD, first_G, which_G))
    sums, first_sums = torch.empty(num_keys, DIM), torch.empty(num_keys)

    def theirs(repeat: int) -> None:
        sums.zero_().index_add_(0, which, grads)
        first_sums.zero_().index_add_(0, which, first)

    theirs(0)
    np.testing.assert_allclose(sums.numpy(), sums_PC[:, :-1], rtol=1e-3, atol=1e-3)
    runs |= torch_runs(theirs)
    name = f"segment sum of {num_grads:,} gradients to {num_keys:,} keys"
    return Case(name, "gradient", num_grads, runs, vs("segment_sum_vs_index_add", "torch"))


def adam_case(num_rows: int, index: BatchIndex) -> Case:
    """Case of Adam on the rows of a batch; torch has weights, m and v in three arrays."""
    num_keys = len(index.unique_P)
    words_SW: U32 = filled(num_rows, ROW.num_words, np.uint32, 0)
    floats_SW, grads_PC = words_SW.view(np.float32), filled(num_keys, DIM + 1, np.float32, 1)
    slots = random_slots(num_rows, num_keys)
    rates_T4 = np.array([(0, 0, 0, 0), (adam_size(0.01, 0.9, 0.999, 1), 1e-8, 0, 1)], np.float32)
    settings = np.float32(0.1), np.float32(0.001), np.float32(0), np.float32(0)

    def ours(threads: Threads, repeat: int) -> None:
        at_P = slots[repeat % SETS]
        threads.split(
            num_keys,
            lambda a, b: update_rows(
                ADAM, floats_SW, words_SW, WEIGHTS_AT, ROW.last_step_at, at_P[a:b], grads_PC[a:b],
                index.starts_P[a : b + 1], DIM, 1, rates_T4, settings, False,
            ),
        )  # fmt: skip

    weights = torch.nn.Parameter(torch.zeros(num_rows, DIM + 1))
    optimizer = torch.optim.SparseAdam([weights], lr=0.01)
    grads = torch.from_numpy(grads_PC)
    sparse = [
        torch.sparse_coo_tensor(at_1U, grads, weights.shape, is_coalesced=True, check_invariants=False)
        for at_1U in (torch.from_numpy(np.sort(at_U).astype(np.int64))[None] for at_U in slots)
    ]

    def theirs(repeat: int) -> None:
        weights.grad = sparse[repeat % SETS]
        optimizer.step()

    runs = by_threads("ours", ours) | torch_runs(theirs)
    return Case(f"Adam on {num_keys:,} of {num_rows:,} rows", "row", num_keys, runs, vs("adam_vs_sparse_adam", "torch"))
