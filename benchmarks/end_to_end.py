"""The pipeline against the usual torch way and against its own ceiling, all in one run.

(a) the pipeline, all rows in the device slab           (c) nn.Embedding(sparse=True) + SparseAdam, all in memory;
                                                        "tuned": with our setting of the C allocator
(b) the pipeline, slabs of 10 % of the table            (d) the ceiling: the dense model on ready-made embeddings
    with the page cache (which then holds the log), and with the log's pages dropped all the time

Batches of 8,192 examples with 26 fields of Zipf keys, D = 16, Adam; figures are examples per second, medians of
interleaved repeats. A pipeline's figure covers whole stretches, filling and draining included.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.common import arguments, finish, machine, spread
from benchmarks.table import Stretches, drop_log_pages, fill_log, raw_row_rate
from benchmarks.torch_way import Ceiling, Sparse, in_own_process
from pipeline.cluster import local_client
from pipeline.memory import keep_freed_memory
from pipeline.models import DeepFM
from pipeline.monitor.timeline import cpu_seconds, hidden_share, stage_seconds
from pipeline.records import Done, Span
from pipeline.run import open_workflow
from pipeline.stages import STAGES
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Synthetic, Workflow

CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Different values of Criteo Kaggle's 26 fields (33.8 M in all), as BagPipe's README lists them."""
ROW_BYTES = 224
DIM = 16


def keys_per_field(num_keys: int) -> tuple[int, ...]:
    """Criteo's cardinalities, the large ones scaled so that all add up to about `num_keys`."""
    small = sum(c for c in CARDINALITIES if c < 10_000)
    scale = (num_keys - small) / (sum(CARDINALITIES) - small)
    return tuple(c if c < 10_000 else max(10_000, int(c * scale)) for c in CARDINALITIES)


def make_workflow(
    name: str, root: Path, num_keys: int, examples: int, hidden: tuple[int, ...], **sizes: Any
) -> Workflow:
    fields = keys_per_field(num_keys)
    ring_rows = sizes.pop("ring_rows")
    slab_rows, host_rows = sizes.pop("slab_rows"), sizes.pop("host_rows")
    return Workflow(
        name=name,
        data=Data(
            root=root / f"{num_keys}",
            train=("train",),
            labels=("label",),
            categories=tuple(Category(name=f"c{f}") for f in range(len(fields))),
            synthetic=Synthetic(train_examples=examples, keys_per_field=fields, zipf=1.05),
        ),
        model=Model(kind=DeepFM, embedding_dim=DIM, args={"hidden": hidden}),
        storage=Storage(
            device=(slab_rows + ring_rows) * ROW_BYTES,
            host=(host_rows + ring_rows + 8192) * ROW_BYTES,
            disk="60 GiB",
            map="2 GiB",
            read="2 GiB",
        ),
        schedule=Schedule(batch_size=sizes.pop("batch_size"), epochs=1000, block_batches=sizes.pop("block_batches")),
    )


class Case:
    """One pipeline, opened once and measured in stretches; what it measured is kept."""

    def __init__(self, workflow: Workflow, run_dir: Path, client: Any, fill: bool, blocks: int) -> None:
        source, fit = open_workflow(workflow)
        run_dir.mkdir()
        self.stretches = Stretches(workflow, source, fit, run_dir, client)
        self.rows = fill_log(self.stretches.resources, workflow.data.synthetic.keys_per_field) if fill else 0
        self.blocks = blocks
        self.rates: list[float] = []
        self.spans: list[Span] = []

    def warm(self, blocks: int) -> None:
        self.stretches.run(blocks)

    def measure(self) -> None:
        rate, spans = self.stretches.run(self.blocks)
        self.rates.append(rate)
        self.spans += spans

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    def close(self) -> None:
        self.stretches.resources.close()


def dense_ids(workflow: Workflow, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """The same examples for torch: ids 0 .. num_keys - 1 [N, F] and labels [N], in memory."""
    file = sorted((workflow.data.root / "train").glob("*.parquet"))[0]
    table = pq.read_table(file).slice(0, num_examples)
    fields = workflow.data.synthetic.keys_per_field
    starts = np.cumsum([0, *fields[:-1]])
    ids = [table[f"c{f}"].to_numpy() + start for f, start in enumerate(starts)]
    return np.stack(ids, 1), table["label"].to_numpy().astype(np.float32)


def dask_cost(client: Any, case: Case) -> dict[str, float]:
    """Cost of Dask itself: what its tasks for a block take, beside what the block takes on a trivial model."""
    calls = 20
    serial_wall, serial_cpu = _timed(lambda: case.stretches.run(case.blocks))
    driver = case.stretches.driver
    blocks = range(calls * 3)
    from pipeline.cluster import DaskExecutor
    from pipeline.schedule import Schedule as Edges

    def empty(stage: str, number: int) -> Done:
        return Done(stage, number)

    executor = DaskExecutor(client, empty)
    stages = driver.resources.stages
    dask_wall, dask_cpu = _timed(lambda: Edges(blocks, 2, stages, executor, lambda done: None).run())
    executor.close()
    return {
        "cpu": dask_cpu / len(blocks) / (serial_cpu / case.blocks),
        "cpu_ms_per_block": 1000 * dask_cpu / len(blocks),
        "block_cpu_ms": 1000 * serial_cpu / case.blocks,
        "empty_chain_ms": 1000 * dask_wall / len(blocks),
        "block_wall_ms": 1000 * serial_wall / case.blocks,
    }


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def print_stages(name: str, spans: list[Span]) -> None:
    print(f"\n{name}: seconds, CPU seconds of its own thread, share hidden behind training")
    seconds, cpu, hidden = stage_seconds(spans), cpu_seconds(spans), hidden_share(spans)
    for stage in (s for s in STAGES if s in seconds):
        share = f"{hidden[stage]:6.1%}" if stage in hidden else "     -"
        print(f"  {stage:12} {seconds[stage]:8.2f} {cpu[stage]:8.2f} {share}")


def main() -> None:
    args = arguments("end_to_end", __doc__ or "")
    quick = args.quick
    print(machine())
    keep_freed_memory()
    batch, k = (256, 4) if quick else (8192, 16)
    keys_a, keys_b = (150_000, 200_000) if quick else (2_000_000, 20_000_000)
    examples = 40 * batch if quick else 640 * batch
    repeats = 1 if quick else args.repeats
    torch_batches = 4 if quick else 40
    ring = 3 * (20_000 if quick else 400_000)
    a_sizes = {"slab_rows": keys_a, "host_rows": 1000, "ring_rows": ring, "batch_size": batch, "block_batches": k}
    slab = keys_b // 20
    b_sizes = a_sizes | {"slab_rows": max(slab, ring // 2), "host_rows": slab}
    with ExitStack() as stack:
        tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
        client = stack.enter_context(local_client())

        def case(name: str, keys: int, hidden: tuple[int, ...], blocks: int, fill: bool, sizes: dict[str, int]) -> Case:
            opened = Case(
                make_workflow(name, args.data, keys, examples, hidden, **sizes), tmp / name, client, fill, blocks
            )
            stack.callback(opened.close)
            return opened

        wide = (400, 400, 400)
        few, many = (2, 4) if quick else (6, 10)
        a64 = case("a64", keys_a, (64,), many, True, a_sizes)
        a400 = case("a400", keys_a, wide, few, True, a_sizes)
        b64 = case("b64", keys_b, (64,), many, True, b_sizes)
        trivial = case("trivial", keys_a, (), few, True, a_sizes)
        trivial.stretches.driver._client = None
        for c, blocks in ((a64, 10), (a400, 3), (b64, 10), (trivial, 1)):
            c.warm(blocks if not quick else 2)
        ids, labels = dense_ids(a64.stretches.driver.workflow, torch_batches * batch)
        num_ids = sum(keys_per_field(keys_a))
        np.savez(tmp / "ids.npz", ids=ids, labels=labels)
        sparse = {h: Sparse(ids, labels, num_ids, DIM, h) for h in ((64,), wide)}
        ceiling = {h: Ceiling(26, batch, DIM, h) for h in ((64,), wide)}
        rates: dict[str, list[float]] = {
            name: [] for name in ("b64 cold", "c64", "c64 tuned", "c400", "c400 tuned", "d64", "d400")
        }
        per_example: list[float] = []
        for repeat in range(-1, repeats):
            timed = {
                "c64": in_own_process(tmp / "ids.npz", num_ids, torch_batches, batch, (64,)),
                "c64 tuned": sparse[(64,)].train(torch_batches, batch),
                "d64": ceiling[(64,)].train(torch_batches),
                "c400": in_own_process(tmp / "ids.npz", num_ids, torch_batches // 2, batch, wide),
                "c400 tuned": sparse[wide].train(torch_batches // 2, batch),
                "d400": ceiling[wide].train(torch_batches // 2),
            }
            if repeat < 0:
                continue
            for name, rate in timed.items():
                rates[name].append(rate)
            a64.measure()
            b64.measure()
            with drop_log_pages(b64.stretches.resources.log.path):
                before = b64.stretches.disk_rows_read
                cold, cold_spans = b64.stretches.run(b64.blocks)
            rates["b64 cold"].append(cold)
            per_example.append((b64.stretches.disk_rows_read - before) / (b64.blocks * k * batch))
            a400.measure()
        rates |= {"a64": a64.rates, "a400": a400.rates, "b64 warm": b64.rates}
        row_rate = raw_row_rate(b64.stretches.resources.log, b64.rows, 100 if quick else 100_000)
        cost = dask_cost(client, trivial)
        print(f"\n{'':10} examples/s, median [least .. most]")
        for name, values in sorted(rates.items()):
            print(f"{name:10} {spread(values)}")
        print_stages("a64", a64.spans)
        print_stages("b64 with the page cache", b64.spans)
        print_stages("b64 without, last repeat", cold_spans)
        limit = row_rate / statistics.median(per_example) if all(per_example) else float("inf")
        rows_read = statistics.median(per_example)
        print(f"\n(b) without the page cache reads {rows_read:.2f} rows per example from disk; pread with 64 threads")
        print(f"takes {row_rate:,.0f} rows/s there, so the disk allows {limit:,.0f} examples/s")
        print("Dask, per block: " + ", ".join(f"{name} {value:.3f}" for name, value in cost.items()))
        m = {name: statistics.median(values) for name, values in rates.items()}
        print(f"torch threads {torch.get_num_threads()}")
        finish({
            "a_vs_c_mlp64": m["a64"] / m["c64"],
            "a_vs_c_mlp64_tuned": m["a64"] / m["c64 tuned"],
            "a_vs_d_mlp64": m["a64"] / m["d64"],
            "a_vs_c_mlp400": m["a400"] / m["c400"],
            "a_vs_d_mlp400": m["a400"] / m["d400"],
            "b_vs_a": m["b64 warm"] / m["a64"],
            "b_vs_limit": m["b64 cold"] / min(m["a64"], limit),
            "dask_cost": cost["cpu"],
        })  # fmt: skip


if __name__ == "__main__":
    main()
