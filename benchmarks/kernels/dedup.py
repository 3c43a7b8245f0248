"""Unique keys: of one batch, by our kernel and all peers; of a block, with each batch's index, by our stage."""

from __future__ import annotations

import numpy as np

from benchmarks.kernels.cases import ALL_CORES, LAYOUT, THREADS, Case, all_cores, as_block, by_threads
from benchmarks.kernels.peers import dedup_peers
from pipeline.kernels.key_table import KeyRange, KeyTable, number_parts
from pipeline.machine.threads import Threads, cut_range
from pipeline.records import I64, U64, BatchIndex, Unique
from pipeline.stages.dedup import Workspace, dedup


def dedup_case(keys_V: U64) -> Case:
    """Case of unique keys and inverse of one batch. As with the peers, the keys are not overwritten."""
    inverse_V = np.empty(len(keys_V), np.int32)
    tables = {num: [KeyTable() for _ in range(num)] for num in THREADS}

    def ours(threads: Threads, repeat: int) -> KeyTable:
        ranges = cut_range(len(keys_V), threads.num_threads)
        parts = [KeyRange(keys_V[r], inverse_V[r], inverse_V[r]) for r in ranges]
        return number_parts(parts, tables[threads.num_threads], threads)

    def check(keys_U: U64, theirs_V: I64) -> None:
        assert len(keys_U) == len(mine.keys_U)
        assert (keys_U[theirs_V] == mine.keys_U[inverse_V]).all()

    mine = ours(THREADS[ALL_CORES], 0)
    title = f"dedup of {len(keys_V):,} keys, {len(mine.keys_U):,} unique"
    runs = by_threads("ours", ours) | dedup_peers(keys_V, check)
    return Case(title, "value", len(keys_V), runs, _ratios())


def _ratios() -> dict[str, tuple[str, str]]:
    single = {"pandas": "pandas factorize", "pandas_int64": "pandas factorize int64", "numpy": "numpy unique"}
    single["pyarrow"] = "pyarrow dictionary_encode"
    found = {f"dedup_vs_{peer}_1t": (run, "ours 1t") for peer, run in single.items()}
    found |= {f"dedup_vs_{peer}": (run, all_cores("ours")) for peer, run in single.items()}
    found["dedup_vs_torch_1t"] = "torch 1t", "ours 1t"
    return found | {"dedup_vs_torch": (all_cores("torch"), all_cores("ours"))}


def stage_case(keys_V: U64, num_batches: int) -> Case:
    """Case of the whole stage on a block: unique keys, and each batch's index; no peer does all of it."""
    examples = as_block(keys_V, num_batches)
    fresh_V = examples.keys_V.copy()
    works = {num: Workspace(LAYOUT, threads) for num, threads in THREADS.items()}
    return Case(
        f"the stage dedup, a block of {num_batches} batches",
        "value",
        len(keys_V),
        by_threads("ours", lambda threads, repeat: dedup(examples, works[threads.num_threads])),
        {"stage_vs_1t": ("ours 1t", all_cores("ours"))},
        before=lambda: np.copyto(examples.keys_V, fresh_V),
    )


def index_of_batch(keys_V: U64, num_batches: int) -> BatchIndex:
    """Index of the first of `num_batches` batches."""
    unique = dedup(as_block(keys_V, num_batches), Workspace(LAYOUT))
    assert isinstance(unique, Unique)
    return unique.batches[0]
