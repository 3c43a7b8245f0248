"""A workflow file that trains in a second, and its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.settings import SPLITS

WORKFLOW = """
from pipeline.models import DeepFM
from pipeline.workflow import Category, Data, Model, Number, Schedule, Storage, Workflow

workflow = Workflow(
    name="tiny",
    data=Data(
        root="{root}",
        train=("train.parquet",),
        validation=("validation.parquet",),
        labels=("label",),
        numbers=(Number(name="i0"),),
        categories=(Category(name="c0"), Category(name="c1")),
    ),
    model=Model(kind=DeepFM, embedding_dim=2, args={{"hidden": [4]}}),
    storage=Storage(device="1 MiB", host="1 MiB", disk="64 MiB", read="4 MiB", map="1 MiB"),
    schedule=Schedule(batch_size=8, block_batches=2, look_ahead=1, threads=1),
)
"""


def make_columns(num_examples: int = 40) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    integers = {name: rng.integers(0, 9, num_examples) for name in ("c0", "c1")}
    return integers | {"label": rng.integers(0, 2, num_examples), "label2": rng.integers(0, 2, num_examples),
                       "i0": rng.random(num_examples), "text": [f"t{n}" for n in range(num_examples)]}  # fmt: skip


def write_tiny(folder: Path) -> Path:
    """Write the data and the workflow file. Returns the file's path."""
    for split in SPLITS:
        pq.write_table(pa.table(make_columns()), folder / f"{split}.parquet")
    path = folder / "tiny.py"
    path.write_text(WORKFLOW.format(root=folder))
    return path
