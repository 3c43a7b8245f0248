"""Measured workflows: Criteo's shape with any number of keys, opened once and run in stretches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.table import Stretches, fill_log
from pipeline.device.gpu import choose
from pipeline.models import DeepFM
from pipeline.preflight.setup import set_up
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Synthetic, Workflow

CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Number of unique values of each of Criteo Kaggle's 26 fields (33.8 M in total), from BagPipe's README."""
ROW_BYTES = 224
DIM = 16


def keys_per_field(num_keys: int) -> tuple[int, ...]:
    """Criteo's cardinalities, with the large ones scaled so that the sum is about `num_keys`."""
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
        device="cpu",
        schedule=Schedule(batch_size=sizes.pop("batch_size"), epochs=1000, block_batches=sizes.pop("block_batches")),
    )


class Case:
    """One pipeline, opened once and measured in stretches. Its table is on disk before it starts."""

    def __init__(self, workflow: Workflow, run_dir: Path, client: Any, blocks: int) -> None:
        setup, source = set_up(workflow, choose(workflow.device), print)
        run_dir.mkdir()
        self.stretches = Stretches(setup, source, run_dir, client)
        assert workflow.data.synthetic is not None
        self.rows = fill_log(self.stretches.worker, workflow.data.synthetic.keys_per_field)
        self.blocks = blocks

    def close(self) -> None:
        self.stretches.worker.close()


def dense_ids(workflow: Workflow, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """The same examples for torch, in memory: ids 0 .. num_keys - 1 [N, F] and labels [N]."""
    file = sorted((workflow.data.root / "train").glob("*.parquet"))[0]
    table = pq.read_table(file).slice(0, num_examples)
    fields = workflow.data.synthetic.keys_per_field
    starts = np.cumsum([0, *fields[:-1]])
    ids = [table[f"c{f}"].to_numpy() + start for f, start in enumerate(starts)]
    return np.stack(ids, 1), table["label"].to_numpy().astype(np.float32)
