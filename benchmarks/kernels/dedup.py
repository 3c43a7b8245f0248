"""Unique keys of one batch, by our kernel and by `pandas.factorize`, if pandas is installed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from benchmarks.kernels.cases import ALL_CORES, LAYOUT, THREADS, Case, all_cores, as_block, by_threads
from pipeline.kernels.key_table import KeyRange, KeyTable, number_parts
from pipeline.machine.threads import Threads, cut_range
from pipeline.records import U64, BatchIndex, Unique
from pipeline.stages.dedup import Workspace, dedup


def dedup_case(keys_V: U64) -> Case:
    """Case of unique keys and inverse of one batch. As with the peer, the keys are not overwritten."""
    inverse_V = np.empty(len(keys_V), np.int32)
    tables = {num: [KeyTable() for _ in range(num)] for num in THREADS}

    def ours(threads: Threads, repeat: int) -> KeyTable:
        ranges = cut_range(len(keys_V), threads.num_threads)
        parts = [KeyRange(keys_V[r], inverse_V[r], inverse_V[r]) for r in ranges]
        return number_parts(parts, tables[threads.num_threads], threads)

    made = ours(THREADS[ALL_CORES], 0)
    title = f"dedup of {len(keys_V):,} keys, {len(made.keys_U):,} unique"
    runs = by_threads("ours", ours)
    if find_spec("pandas"):
        import pandas as pd

        runs["pandas factorize"] = lambda repeat: pd.factorize(keys_V)
        theirs_V, keys_U = pd.factorize(keys_V)
        assert len(keys_U) == len(made.keys_U)
        assert (keys_U[theirs_V] == made.keys_U[inverse_V]).all()
    ratios = {"dedup_vs_pandas_1t": "ours 1t", "dedup_vs_pandas": all_cores("ours")}
    return Case(
        title, "value", len(keys_V), runs, {ratio: ("pandas factorize", mine) for ratio, mine in ratios.items()}
    )


def index_of_batch(keys_V: U64, num_batches: int) -> BatchIndex:
    """Index of the first of `num_batches` batches."""
    unique = dedup(as_block(keys_V, num_batches), Workspace(LAYOUT))
    assert isinstance(unique, Unique)
    return unique.batches[0]
