"""Cases of work on rows: moving rows, summing their gradients, updating them, and finding them by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from benchmarks.cases import DIM
from benchmarks.kernels.cases import Case, Run, all_cores, by_threads
from benchmarks.kernels.limits import copies, read_lines_only, read_rows_only
from benchmarks.kernels.peers import adam_peers, find_peers, gather_peers, scatter_peers, segment_sum_peers
from pipeline.kernels.hint import AHEAD
from pipeline.kernels.row_rules import ADAM, adam_size
from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.kernels.segment_sum import segment_sum
from pipeline.kernels.stream import streams_by
from pipeline.kernels.update_rows import update_rows
from pipeline.machine.memory import aligned_empty
from pipeline.machine.threads import Threads
from pipeline.records import F32, I32, TILE, U32, BatchIndex
from pipeline.storage.key_map import KeyMap
from pipeline.storage.layout import WEIGHTS_AT, RowLayout

ROW = RowLayout(DIM, True)
WIDTHS = (ROW.num_words, 38)
"""Numbers of words of the moved rows: D = 16, and D = 10 as in CowClip, whose rows are not a multiple of a vector."""
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


def move_cases(num_rows: int, count: int, words: int = ROW.num_words) -> list[Case]:
    """Cases of moving rows of a table larger than any cache to and from a buffer, compared with a plain copy of as many
    bytes. Names of ratios contain the size of a row in bytes unless D = 16."""
    slab_SW: U32 = filled(num_rows, words, np.uint32, 1)
    out_UW, rows_UW = (filled(count, words, np.uint32, value) for value in (2, 3))
    slots = random_slots(num_rows, count)

    def move(kernel: Callable[..., object], *rows: U32) -> Callable[[Threads, int], object]:
        def run(threads: Threads, repeat: int) -> None:
            at_U = slots[repeat % SETS]
            threads.split(count, lambda a, b: kernel(slab_SW, at_U[a:b], *(array[a:b] for array in rows)))

        return run

    size = f"{count:,} rows of {words * 4} bytes, {num_rows:,} rows in all"
    width = "" if words == ROW.num_words else f"_{4 * words}"
    cases = []
    for name, kernel, rows, peers, theirs in (
        ("gather", gather_rows, out_UW, gather_peers, "index_select"),
        ("scatter", scatter_rows, rows_UW, scatter_peers, "index_copy"),
    ):
        runs = by_threads("ours", move(kernel, rows)) | peers(slab_SW, slots, rows) | copies(rows_UW, out_UW)
        runs |= by_threads("limit: random rows only read", move(read_rows_only)) if name == "gather" else {}
        ratios = vs(f"{name}{width}_vs_copy", "copy") | vs(f"{name}{width}_vs_{theirs}", "torch")
        if name == "gather" and not width:
            ratios["random_reads_vs_copy_1t"] = ("copy 1t", "limit: random rows only read 1t")
        cases.append(Case(f"{name} {size}", "row", count, runs, ratios))
    return cases


def variants() -> str:
    """Variants that the kernels choose on this processor and for these widths, and why."""
    features = llvm.get_host_cpu_features()
    vector = next(bits for bits, name in ((512, "avx512f"), (256, "avx2"), (128, "")) if features.get(name, not name))
    lines = [f"Numba compiles for {llvm.get_host_cpu_name()}, whose vectors have {vector} bits"]
    for words in WIDTHS:
        by = streams_by(filled(1, words, np.uint32, 0))
        kind = f"streaming stores of {by} bytes, since the rows are multiples of it" if by else "ordinary stores"
        lines.append(f"gather and scatter of rows of {4 * words} bytes: {kind}")
    lines.append(f"rows, gradients and lines of the key map are prefetched {AHEAD} ahead, gradients {2 * AHEAD}")
    lines.append("segment sum, Adam, dedup, find: one variant on every processor")
    return "\n".join(lines)


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
    runs |= segment_sum_peers(grads_GD, first_G, which_G, sums_PC)
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

    runs: dict[str, Run] = by_threads("ours", ours) | adam_peers(num_rows, slots, grads_PC)
    return Case(f"Adam on {num_keys:,} of {num_rows:,} rows", "row", num_keys, runs, vs("adam_vs_sparse_adam", "torch"))


def vs(name: str, peer: str) -> dict[str, tuple[str, str]]:
    return {f"{name}_1t": (f"{peer} 1t", "ours 1t"), name: (all_cores(peer), all_cores("ours"))}


def find_case(num_keys: int, count: int) -> Case:
    """Case of finding the places of known keys; `plan` uses one thread, and so do all runs here."""
    rng = np.random.default_rng(0)
    keys_N = np.unique(rng.integers(0, 2**63, num_keys).astype(np.uint64) << np.uint64(1))
    rng.shuffle(keys_N)
    key_map = KeyMap()
    key_map.insert(keys_N, np.arange(len(keys_N)))
    asked = [rng.choice(keys_N, count, replace=False) for _ in range(SETS)]
    # A contiguous table whose size is a power of two and at least that of the map; random keys give random indices.
    lines_L = np.ones(1 << (key_map.num_bytes // 8 - 1).bit_length(), np.uint64)
    spread = [rng.integers(0, 2**63, count).astype(np.uint64) for _ in range(SETS)]
    assert (keys_N[key_map.find(asked[0])] == asked[0]).all()
    runs: dict[str, Run] = {
        "ours 1t": lambda repeat: key_map.find(asked[repeat % SETS]),
        "limit: one random line a key 1t": lambda repeat: read_lines_only(lines_L, spread[repeat % SETS]),
    }
    ratios = {
        "find_vs_dict_1t": ("dict 1t", "ours 1t"),
        "find_vs_pandas_1t": ("pandas get_indexer 1t", "ours 1t"),
        "find_vs_limit_1t": ("limit: one random line a key 1t", "ours 1t"),
    }
    name = f"key map: {count:,} of {len(keys_N):,} keys, {key_map.num_bytes >> 20} MiB"
    return Case(name, "key", count, runs | find_peers(keys_N, asked), ratios)
