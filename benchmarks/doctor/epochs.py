"""Faults of kind `second_epoch`: a category with almost one value per row, which a model has memorized when it sees the
rows again.

The embedding of an ID that occurs once is updated once in the first epoch. From the second epoch on, these embeddings
alone explain the label, and the rest of the model forgets: the one-epoch phenomenon of CTR models (Zhang et al., CIKM
2022).
"""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.doctor.copies import Copy, Trace, pick
from benchmarks.once import Quiet, train
from pipeline.models import DeepFM
from pipeline.records import I64
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Model, Schedule, Storage, Workflow

ROWS = {"train": 60_000, "validation": 10_000, "test": 5_000}
"""Maximum number of rows of each split in these runs."""
COMMON = 50
"""Number of values of the rows without an individual ID, which have the version of an app instead."""
LEARNED = ("frappe", "synthetic")
"""Data sets whose validation AUC rises for several epochs with these settings. That of the sample of Criteo's logs
falls from the second epoch on without any fault: it has 1,900 positives, and many of its keys occur once."""


def shrink(copy: Copy, rng: np.random.Generator) -> None:
    """Keep a sample of the rows of each split, in its first file, and use settings that train in seconds."""
    kept = {}
    for split, names in copy.splits.items():
        rows = copy.rows(split)
        kept[names[0]] = np.sort(rng.choice(rows, min(ROWS[split], len(rows)), replace=False))
        copy.splits[split] = names[:1]
    copy.files = kept
    copy.change(**copy.splits)
    copy.workflow = copy.workflow.model_copy(update=settings())


def settings() -> dict[str, Any]:
    """Return a small model, and rows that learn so fast that an epoch is enough to memorize a row."""
    return {
        "model": Model(kind=DeepFM, embedding_dim=16, args={"hidden": (64,)}),
        "optimizer": Optimizer(rows=Adam(lr=1e-2, l2=3e-4), dense=DenseAdam(lr=2e-3)),
        "storage": Storage(device="48 MiB", host="16 MiB", disk="1 GiB", read="64 MiB", map="16 MiB"),
        "schedule": Schedule(batch_size=128, epochs=4, block_batches=8, threads=1),
        "device": "cpu",
    }


def request_id(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """An ID that no two rows share, in `share` of all rows."""
    return _add(copy, "request_id", np.arange(len(copy.table)), share, rng)


def session_id(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """The ID of a session of three rows on average, in `share` of all rows."""
    return _add(copy, "session_id", rng.integers(0, len(copy.table) // 3 + 1, len(copy.table)), share, rng)


def _add(copy: Copy, name: str, number_N: I64, share: float, rng: np.random.Generator) -> Trace:
    ids = (1 << 30) + rng.permutation(number_N.max() + 1)
    values_N = rng.integers(0, COMMON, len(number_N))
    used = np.concatenate(list(copy.files.values()))
    rows = pick(rng, used, share)
    values_N[rows] = ids[number_N[rows]]
    copy.add(Category(name=name), pa.array(values_N))
    return Trace((name,), len(rows), len(used))


def train_run(workflow: Workflow, run_dir: Path) -> list[float]:
    """Train in this process, without Dask, and return the AUC on the validation split after each epoch."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    with redirect_stdout(StringIO()):
        result = train(workflow, run_dir, Quiet(), serial=True, keep=True)
    return [epoch["auc"] for epoch in result["epochs"] if epoch["split"] == "validation"]
