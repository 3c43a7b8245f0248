"""Other libraries' functions for the work of our kernels, each with the best settings that we found.

torch has its own threads, and runs with one core and with all; pandas, NumPy, Arrow's dictionary_encode and a dict
use one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import torch

from benchmarks.kernels.cases import ALL_CORES, Run
from pipeline.records import F32, I32, I64, U32, U64

HAS_PANDAS = find_spec("pandas") is not None


def versions() -> str:
    if not HAS_PANDAS:
        return "pandas is not installed (pip install '.[bench]'): left out"
    return f"pandas {version('pandas')}"


def with_threads(num: int, run: Run) -> Run:
    def call(repeat: int) -> None:
        torch.set_num_threads(num)
        run(repeat)

    return call


def torch_runs(run: Run) -> dict[str, Run]:
    return {f"torch {num}t": with_threads(num, run) for num in sorted({1, ALL_CORES})}


def dedup_peers(keys_V: U64, check: Callable[[U64, I64], None]) -> dict[str, Run]:
    """Runs for unique keys and inverse. pandas and Arrow keep the order of first appearance; torch and NumPy sort."""
    signed = torch.from_numpy(keys_V.view(np.int64))
    arrow = pa.array(keys_V)
    runs: dict[str, Run] = {
        "numpy unique": lambda repeat: np.unique(keys_V, return_inverse=True),
        "pyarrow dictionary_encode": lambda repeat: arrow.dictionary_encode(),
    }
    runs |= torch_runs(lambda repeat: torch.unique(signed, return_inverse=True))
    keys_U, inverse_V = np.unique(keys_V, return_inverse=True)
    check(keys_U, inverse_V)
    encoded = arrow.dictionary_encode()
    check(encoded.dictionary.to_numpy(), encoded.indices.to_numpy())
    if HAS_PANDAS:
        import pandas as pd

        runs["pandas factorize"] = lambda repeat: pd.factorize(keys_V)
        runs["pandas factorize int64"] = lambda repeat: pd.factorize(keys_V.view(np.int64))
        codes, uniques = pd.factorize(keys_V)
        check(uniques, codes)
    return runs


def gather_peers(slab_SW: U32, slots: list[I32], out_UW: U32) -> dict[str, Run]:
    slab, out, at = _tensors(slab_SW, slots, out_UW)
    return torch_runs(lambda repeat: torch.index_select(slab, 0, at[repeat % len(at)], out=out))


def scatter_peers(slab_SW: U32, slots: list[I32], rows_UW: U32) -> dict[str, Run]:
    slab, rows, at = _tensors(slab_SW, slots, rows_UW)
    return torch_runs(lambda repeat: slab.index_copy_(0, at[repeat % len(at)], rows))


def _tensors(slab_SW: U32, slots: list[I32], rows_UW: U32) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Tensors with indices of 64 bits, torch's default: with 32 bits index_add_ takes twice as long."""
    slab, rows = (torch.from_numpy(words.view(np.int32)) for words in (slab_SW, rows_UW))
    return slab, rows, [torch.from_numpy(at_U.astype(np.int64)) for at_U in slots]


def segment_sum_peers(grads_GD: F32, first_G: F32, which_G: I64, out_PC: F32) -> dict[str, Run]:
    """Runs of index_add_ into zeros, once for the embeddings and once for the first-order weights."""
    grads, first, which = torch.from_numpy(grads_GD), torch.from_numpy(first_G), torch.from_numpy(which_G)
    sums, first_sums = torch.empty(len(out_PC), grads_GD.shape[1]), torch.empty(len(out_PC))

    def run(repeat: int) -> None:
        sums.zero_().index_add_(0, which, grads)
        first_sums.zero_().index_add_(0, which, first)

    run(0)
    np.testing.assert_allclose(sums.numpy(), out_PC[:, :-1], rtol=1e-3, atol=1e-3)
    return torch_runs(run)


def adam_peers(num_rows: int, slots: list[I32], grads_PC: F32) -> dict[str, Run]:
    weights = torch.nn.Parameter(torch.zeros(num_rows, grads_PC.shape[1]))
    optimizer = torch.optim.SparseAdam([weights], lr=0.01)
    grads = torch.from_numpy(grads_PC)
    sparse = [
        torch.sparse_coo_tensor(at_1U, grads, weights.shape, is_coalesced=True, check_invariants=False)
        for at_1U in (torch.from_numpy(np.sort(at_U).astype(np.int64))[None] for at_U in slots)
    ]

    def run(repeat: int) -> None:
        weights.grad = sparse[repeat % len(sparse)]
        optimizer.step()

    return torch_runs(run)


def find_peers(keys_N: U64, asked: list[U64]) -> dict[str, Run]:
    """Runs of a dict, whose keys are converted to Python integers beforehand, and of pandas."""
    table, lists = dict(zip(keys_N.tolist(), range(len(keys_N)), strict=True)), [keys_U.tolist() for keys_U in asked]
    runs: dict[str, Run] = {"dict 1t": lambda repeat: list(map(table.get, lists[repeat % len(lists)]))}
    if HAS_PANDAS:
        import pandas as pd

        index = pd.Index(keys_N)
        runs["pandas get_indexer 1t"] = lambda repeat: index.get_indexer(asked[repeat % len(asked)])
    return runs
