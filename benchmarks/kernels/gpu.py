"""Our CUDA kernels compared with CuPy and torch, and with plain copies in the GPU's memory.

Times are measured by events on one stream, medians of interleaved repeats, each after the caches were filled with
other data. `_vs_copy`: necessary bytes per second divided by those of a copy; both count bytes read and written.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.common import arguments, finish, machine
from benchmarks.kernels.cases import LAYOUT, zipf_keys
from pipeline.device.gpu import choose
from pipeline.kernels.dedup_cuda import index_batch_cuda, unique_keys_cuda
from pipeline.kernels.row_rules import ADAM, adam_size
from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.kernels.segment_sum import segment_sum
from pipeline.kernels.update_rows import update_rows
from pipeline.records import TILE, U64

DIM = 16
WIDTH = DIM + 1
WORDS = 5 + 3 * WIDTH
NOISE_BYTES = 256 << 20
"""Bytes written between runs: more than the caches of any GPU."""


class Bench:
    """Measurement of runs, which take turns on the stream `train`."""

    def __init__(self, repeats: int) -> None:
        self.device, self._repeats = choose("cuda"), repeats
        import cupy

        self.cupy = cupy
        self._noise = cupy.ones(NOISE_BYTES, np.uint8)
        self.ratios: dict[str, float] = {}

    def to_device(self, *arrays: Any) -> Any:
        return [self.device.to_device(array) for array in arrays]

    def compare(self, name: str, runs: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Median milliseconds of each run."""
        times: dict[str, list[float]] = {run: [] for run in runs}
        for repeat in range(self._repeats + 1):
            for run, work in runs.items():
                milliseconds = self._time(work)
                if repeat:
                    times[run].append(milliseconds)
        medians = {run: statistics.median(values) for run, values in times.items()}
        print(f"\n{name}: ms [least .. most]")
        for run, values in times.items():
            print(f"  {run:30} {medians[run]:9.3f} [{min(values):,.3f} .. {max(values):,.3f}]", flush=True)
        return medians

    def _time(self, work: Callable[[], object]) -> float:
        stream: Any = self.device.train
        torch_stream = torch.cuda.ExternalStream(stream.pointer)

        def with_torch() -> None:
            with torch.cuda.stream(torch_stream):
                work()

        stream.run(self._noise.__iadd__, np.uint8(1))
        begin = stream.record()
        stream.run(with_torch)
        end = stream.record()
        end.wait()
        return float(self.cupy.cuda.get_elapsed_time(begin.event, end.event))


def dedup(bench: Bench, keys_V: U64) -> tuple[Any, Any, int]:
    """Measure the block's unique keys, then each batch's index. Returns positions, the batch's sources, and U."""
    size, limit = len(keys_V), len(keys_V) // 2
    slots = 1 << (2 * limit - 1).bit_length()
    empty = bench.device.empty
    (keys,) = bench.to_device(keys_V)
    table, first, position = empty(slots, np.uint64), empty(slots, np.int32), empty(size, np.int32)
    unique, count = empty(limit, np.uint64), empty(1, np.int32)
    signed = torch.from_dlpack(keys.view(np.int64))
    ms = bench.compare(
        f"dedup of {size:,} keys",
        {
            "ours": lambda: unique_keys_cuda(keys, table, first, position, limit, unique, count),
            "cupy unique": lambda: bench.cupy.unique(keys, return_inverse=True),
            "torch unique": lambda: torch.unique(signed, return_inverse=True),
        },
    )
    bench.ratios |= {"dedup_vs_cupy": ms["cupy unique"] / ms["ours"], "dedup_vs_torch": ms["torch unique"] / ms["ours"]}
    num_unique = int(count.get()[0])
    print(f"  {size / ms['ours'] / 1e6:,.2f} G keys/s, {num_unique:,} unique")
    return position, index_of(bench, position, num_unique), num_unique


def index_of(bench: Bench, position: Any, num_unique: int) -> Any:
    size, empty = len(position), bench.device.empty
    num_examples = size // LAYOUT.num_fields
    bags = bench.device.to_device(np.zeros((0, num_examples + 1), np.int32))
    single, multi = bench.to_device(np.array(LAYOUT.single_S, np.int32), np.empty(0, np.int32))
    first, out = empty(num_unique, np.int32), [empty(n, np.int32) for n in (size, size + 1, size, size, 1)]
    bench.compare("index of a batch", {"ours": lambda: index_batch_cuda(position, bags, single, multi, first, *out)})
    return out


def move_rows(bench: Bench, slots: int, rows: int) -> None:
    slab, out = (bench.cupy.ones((n, WORDS), np.uint32) for n in (slots, rows))
    other = bench.cupy.ones((rows, WORDS), np.uint32)
    at = bench.device.to_device(np.random.default_rng(0).permutation(slots)[:rows].astype(np.int32))
    table, wide_at = torch.from_dlpack(slab.view(np.int32)), torch.from_dlpack(at).long()
    wide_out = torch.from_dlpack(out.view(np.int32))
    ms = bench.compare(
        f"{rows:,} rows of {4 * WORDS} bytes",
        {
            "gather": lambda: gather_rows(slab, at, out),
            "scatter": lambda: scatter_rows(slab, at, out),
            "torch index_select": lambda: torch.index_select(table, 0, wide_at, out=wide_out),
            "copy": lambda: bench.cupy.copyto(other, out),
        },
    )
    bench.ratios |= {
        "gather_vs_copy": ms["copy"] / ms["gather"],
        "scatter_vs_copy": ms["copy"] / ms["scatter"],
        "gather_vs_torch": ms["torch index_select"] / ms["gather"],
        "copy_tb_per_s": 2 * out.nbytes / ms["copy"] / 1e9,
    }


def sum_gradients(bench: Bench, index: Any, num_unique: int) -> None:
    _, starts, inverse, source, _ = index
    size, fields = len(inverse), LAYOUT.num_fields
    grads = bench.cupy.random.standard_normal((size, DIM), np.float32)
    first = bench.cupy.random.standard_normal(size, np.float32)
    out, none = bench.cupy.empty((num_unique, WIDTH), np.float32), bench.cupy.empty(0, np.float32)
    # Position of the key of each gradient; gradients are in the order of examples.
    which = torch.from_dlpack(bench.cupy.ascontiguousarray(inverse.reshape(fields, -1).T).reshape(-1)).long()
    wide = torch.from_dlpack(bench.cupy.concatenate([grads, first[:, None]], axis=1))

    def ours() -> None:
        segment_sum(grads, first, source, starts[: num_unique + 1], none, TILE * fields, out)

    ms = bench.compare(
        "segmented sum",
        {
            "ours": ours,
            "torch embedding_dense_backward": lambda: torch.ops.aten.embedding_dense_backward(
                wide, which, num_unique, -1, False
            ),
            "torch index_add_": lambda: torch.zeros(num_unique, WIDTH, device="cuda").index_add_(0, which, wide),
        },
    )
    bench.ratios["segment_sum_vs_torch"] = ms["torch embedding_dense_backward"] / ms["ours"]
    bench.ratios["segment_sum_vs_index_add"] = ms["torch index_add_"] / ms["ours"]


def move_by_adam(bench: Bench, slots: int, rows: int) -> None:
    words = bench.cupy.zeros((slots, WORDS), np.uint32)
    floats = words.view(np.float32)
    at_host = np.sort(np.random.default_rng(1).permutation(slots)[:rows])
    at, starts = bench.to_device(at_host.astype(np.int32), np.arange(rows + 1, dtype=np.int32))
    grads = bench.cupy.random.standard_normal((rows, WIDTH), np.float32)
    rates_T4 = np.array([(0, 0, 0, 0), (adam_size(0.01, 0.9, 0.999, 1), 1e-8, 0, 1)], np.float32)
    (rates,) = bench.to_device(rates_T4)
    settings = np.float32(0.1), np.float32(0.001), np.float32(0), np.float32(0)
    at_last = 2 + 3 * WIDTH
    weights = torch.nn.Parameter(torch.zeros(slots, WIDTH, device="cuda"))
    optimizer = torch.optim.SparseAdam([weights], lr=0.01)
    indices = torch.from_numpy(at_host)[None].cuda()
    weights.grad = torch.sparse_coo_tensor(
        indices, torch.from_dlpack(grads), weights.shape, is_coalesced=True, check_invariants=False
    )
    one, other = (bench.cupy.ones(NOISE_BYTES, np.uint8) for _ in range(2))
    ms = bench.compare(
        f"row Adam of {rows:,} rows",
        {
            "ours": lambda: update_rows(
                ADAM, floats, words, 2, at_last, at, grads, starts, DIM, 1, rates, settings, False
            ),
            "torch SparseAdam": optimizer.step,
            f"copy of {NOISE_BYTES >> 20} MiB": lambda: bench.cupy.copyto(one, other),
        },
    )
    must_move = rows * (2 * 4 * (3 * WIDTH + 2) + 4 * WIDTH + 4 + 4)
    copied_per_ms = 2 * NOISE_BYTES / ms[f"copy of {NOISE_BYTES >> 20} MiB"]
    bench.ratios["adam_vs_sparse_adam"] = ms["torch SparseAdam"] / ms["ours"]
    bench.ratios["adam_vs_copy"] = must_move / ms["ours"] / copied_per_ms


def main() -> None:
    args = arguments("kernels.gpu", __doc__ or "")
    print(machine())
    try:
        bench = Bench(2 if args.quick else 10 * args.repeats)
    except ValueError as error:
        print(f"{error}: to be measured where there is one")
        finish(args, {})
        return
    print(f"on {bench.device.model}")
    keys_V = zipf_keys(4096 if args.quick else 131_072)
    _, index, num_unique = dedup(bench, keys_V)
    sum_gradients(bench, index, num_unique)
    slots, rows = (20_000, 2_000) if args.quick else (8_000_000, 1_000_000)
    move_rows(bench, slots, rows)
    move_by_adam(bench, slots, rows)
    finish(args, bench.ratios)


if __name__ == "__main__":
    main()
