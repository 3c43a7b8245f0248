"""Speed of DIN on histories of two shapes: mean length 9 and maximum 100, mean 50 and maximum 1,000.

    python -m benchmarks.sequences [--examples N] [--shape short|long]

Training steps of three implementations, one after the other on the same batches and in the same process: this package's
DIN on ragged values; plain torch padded to the batch's longest history; and FuxiCTR's, if installed, which pads to the
maximum length. Tables are in memory, batches ready. Then whole runs of the pipeline, which reads, finds unique keys,
moves rows and trains, excluding the start. All use one torch thread. Figures are examples per CPU second, which other
processes on the machine affect little, and per wall second. For accuracy see `benchmarks.sequences.beauty`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.common import arguments, finish, machine
from benchmarks.once import Quiet, train
from benchmarks.sequences.ways import CATEGORIES, ITEMS, WAYS, Batch, Shape
from pipeline import models
from pipeline.workflow import Workflow

SHAPES = {"short": Shape(9, 100, 1024), "long": Shape(50, 1000, 256)}
QUICK = {"short": Shape(3, 10, 64, 4, (8,), (8,)), "long": Shape(5, 40, 32, 4, (8,), (8,))}
NUM_BATCHES, WARM_UP = 4, 0.25
"""Number of batches per repeat, and the fraction of a run of the pipeline that is not measured."""


class Clock(Quiet):
    """CPU and wall seconds at each number of examples."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, tuple[float, float]] = {}

    def update(self, examples_done: int, loss: float) -> None:
        super().update(examples_done, loss)
        self.at[examples_done] = time.process_time(), time.perf_counter()

    def rates(self, minimum: int) -> tuple[float, float]:
        first = min(at for at in self.at if at >= minimum)
        last = max(self.at)
        cpu, wall = (self.at[last][n] - self.at[first][n] for n in range(2))
        return (last - first) / cpu, (last - first) / wall


def write(root: Path, batch: Batch) -> None:
    """A file with the batch's examples for the pipeline."""
    root.mkdir(parents=True, exist_ok=True)
    offsets = pa.array(batch.offsets.numpy().astype(np.int32))
    columns: dict[str, object] = {"label": batch.labels.numpy().astype(np.int8)}
    for f, name in enumerate(("item", "category")):
        columns[name] = batch.candidates_BF[:, f].numpy()
        columns[f"hist_{name}"] = pa.ListArray.from_arrays(offsets, pa.array(batch.values_VF[:, f].numpy()))
    pq.write_table(pa.table(columns), root / "train.parquet", row_group_size=8192)


def workflow(root: Path, shape: Shape) -> Workflow:
    sequence = {
        "name": "history", "max_length": shape.longest, "items": {"hist_item": "item", "hist_category": "category"}
    }  # fmt: skip
    fields = {
        "name": "sequences",
        "data": {
            "root": root, "train": ("train.parquet",), "labels": ("label",), "sequences": (sequence,),
            "categories": ({"name": "item"}, {"name": "category"}),
        },
        "model": {
            "kind": models.DIN, "embedding_dim": shape.dim, "init_std": 0.02,
            "args": {"hidden": shape.hidden, "attention": shape.attention},
        },
        "optimizer": {"rows": {"kind": "adam", "lr": 1e-3}, "dense": {"lr": 1e-3}},
        "schedule": {"batch_size": shape.batch, "epochs": 1, "threads": 1, "block_batches": 4},
        "metrics": {"progressive": False},
    }  # fmt: skip
    return Workflow.model_validate(fields)


def whole_run(shape: Shape, num_examples: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="sequences-") as folder:
        write(Path(folder) / "data", Batch(shape, np.random.default_rng(7), num_examples))
        clock = Clock()
        train(workflow(Path(folder) / "data", shape), Path(folder) / "run", clock)
        return clock.rates(int(WARM_UP * num_examples))


def measure(name: str, shape: Shape, repeats: int, num_examples: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    batches = [Batch(shape, rng) for _ in range(NUM_BATCHES)]
    steps = {way: step for way, make in WAYS.items() if (step := make(shape))}
    if "fuxictr" not in steps:
        print("FuxiCTR is not installed: pip install fuxictr, in a separate environment")
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in (*steps, "pipeline")}
    for step in steps.values():
        step(batches[0])
    for _ in range(repeats):
        for way, step in steps.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for batch in batches:
                step(batch)
            examples = shape.batch * len(batches)
            found[way].append((examples / (time.process_time() - cpu), examples / (time.perf_counter() - wall)))
        found["pipeline"].append(whole_run(shape, num_examples))
    longest = statistics.mean(int(batch.lengths.max()) for batch in batches)
    print(
        f"{name}: {ITEMS:,} items, {CATEGORIES} categories, D = {shape.dim}, batches of {shape.batch:,}, mean length "
        f"{statistics.mean(float(batch.lengths.mean()) for batch in batches):.1f}, longest of a batch {longest:.0f}, "
        f"allowed {shape.longest:,}; examples for each second of the processor, and of the clock"
    )
    figures = {}
    for way, rates in found.items():
        cpu, wall = (statistics.median(rate[n] for rate in rates) for n in range(2))
        print(f"  {way:10} {cpu:10,.0f} {wall:10,.0f}")
        figures[f"{name}_{way}"] = cpu
    for way in steps:
        if way != "ragged":
            for own in ("ragged", "pipeline"):
                figures[f"{name}_{own}_to_{way}"] = statistics.median(
                    one[0] / other[0] for one, other in zip(found[own], found[way], strict=True)
                )
                print(f"  {own} to {way}: {figures[f'{name}_{own}_to_{way}']:.2f}")
    return figures


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", choices=SHAPES, help="default: both")
    parser.add_argument("--examples", type=int, help="of a run of the pipeline; default: 60 batches")


def main() -> None:
    args = arguments("sequences", __doc__ or "", options)
    print(machine())
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    for name, shape in (QUICK if args.quick else SHAPES).items():
        if args.shape in (None, name):
            examples = args.examples or shape.batch * (20 if args.quick else 60)
            figures |= measure(name, shape, 1 if args.quick else args.repeats, examples)
    finish(args, figures)


if __name__ == "__main__":
    main()
