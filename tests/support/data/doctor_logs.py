"""Small logs for the doctor: columns correlated with each other and with the label, and changes that tests make to
them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.doctor.diagnose import diagnose
from pipeline.doctor.finding import Finding
from pipeline.models import LR
from pipeline.workflow import Category, Data, Model, Number, Schedule, Workflow

FILES = {"train-1": 4000, "train-2": 4000, "train-3": 4000, "validation": 3000, "test": 3000}
Log = dict[str, dict[str, Any]]


def sound_log(seed: int = 0, files: Mapping[str, int] = FILES) -> Log:
    """Columns of each file: users who live in cities, items, a price, a time that increases from row to row, and a
    label whose probability depends on user and item."""
    rng = np.random.default_rng(seed)
    log, begin = {}, 0
    for name, num in files.items():
        user = rng.integers(0, 200, num)
        item = (300 * rng.random(num) ** 2).astype(np.int64)
        city = np.where(rng.random(num) < 0.9, user % 20, rng.integers(0, 20, num))
        logit = -1.5 + np.sin(user) + np.cos(item)
        log[name] = {
            "label": (rng.random(num) < 1 / (1 + np.exp(-logit))).astype(np.int8),
            "user": user + 1000,
            "item": item + 2000,
            "city": city + 3000,
            "price": rng.lognormal(2, 1, num),
            "time": 1_700_000_000 + 60 * (begin + np.arange(num)),
        }
        begin += num
    return log


def examined(
    root: Path, log: Log, categories: tuple[str, ...] = ("user", "item", "city"), numbers: tuple[Number, ...] = (),
) -> Workflow:  # fmt: skip
    """Write the log, and return its workflow. A file belongs to the split whose name is a prefix of the file's name."""
    root.mkdir(parents=True, exist_ok=True)
    for name, columns in log.items():
        pq.write_table(pa.table(columns), root / f"{name}.parquet", row_group_size=1000)
    splits = {
        split: tuple(f"{name}.parquet" for name in log if name.startswith(split))
        for split in ("train", "validation", "test")
    }
    numbers = numbers or ((Number(name="price", log1p=True),) if "price" in next(iter(log.values())) else ())
    return Workflow(
        name="examined",
        data=Data(
            root=root, labels=("label",), categories=tuple(Category(name=c) for c in categories), numbers=numbers,
            **splits,
        ),
        model=Model(kind=LR, embedding_dim=0),
        schedule=Schedule(batch_size=500),
    )  # fmt: skip


def findings_of(root: Path, log: Log, *args: Any, **named: Any) -> list[Finding]:
    """All findings for the log, without a run."""
    return diagnose(examined(root, log, *args, **named), None, lambda line: None)


def faults_of(root: Path, log: Log, *args: Any, **named: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Kind and columns of each fault."""
    found = findings_of(root, log, *args, **named)
    return [(finding.kind, finding.columns) for finding in found if finding.level == "fault"]


def changed(log: Log, column: str, share: float, value: Any, seed: int = 1) -> None:
    """Set a random share of a column's rows. `value`: one value, or a function of a file's columns."""
    rng = np.random.default_rng(seed)
    for columns in log.values():
        rows = rng.random(len(columns["label"])) < share
        columns[column] = np.where(rows, value(columns) if callable(value) else value, columns[column])
