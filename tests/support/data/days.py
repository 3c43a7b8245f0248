"""Training data with event times: a sequence of days, some of them empty, in files split at arbitrary places."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import make_table, make_workflow

from pipeline.workflow import Time, Workflow

FIRST = datetime(2026, 11, 20)


def day_table(rng: np.random.Generator, day: int, num_examples: int, num_keys: int = 20) -> pa.Table:
    """Examples of one day, in time order."""
    seconds = np.sort(rng.integers(0, 86_400, num_examples))
    times = [FIRST + timedelta(days=day, seconds=int(s)) for s in seconds]
    return make_table(rng, num_examples, num_keys).append_column("at", pa.array(times, pa.timestamp("us")))


def write_days(root: Path, sizes: Sequence[int], seed: int = 0, row_group_size: int = 8) -> list[Path]:
    """Write one file per day with these numbers of examples, `train-0.parquet` and so on, and one file of validation
    data."""
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True, exist_ok=True)
    files = [root / f"train-{day}.parquet" for day in range(len(sizes))]
    for day, (file, size) in enumerate(zip(files, sizes, strict=True)):
        pq.write_table(day_table(rng, day, size), file, row_group_size=row_group_size)
    return files


def days_workflow(root: Path, **changes: Any) -> Workflow:
    """The small workflow on such data, with days as spans. `changes` may include the data's `time`, `span` and
    `label_delay`, and `metrics`."""
    of_data = {"time": Time(name="at"), **{n: changes.pop(n) for n in ("time", "span", "label_delay") if n in changes}}
    settings = {f"data.{name}": value for name, value in of_data.items()}
    settings |= {f"metrics.{name}": value for name, value in changes.pop("metrics", {}).items()}
    workflow = make_workflow(root, **({"epochs": 1} | changes))
    return workflow.with_settings({"data.validation": (), "data.test": (), **settings})
