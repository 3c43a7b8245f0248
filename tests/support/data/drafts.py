"""The command `init` without a trial of candidates, since training these takes seconds; and logs written for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pipeline.init.main import main
from pipeline.workflow import Workflow, load


def init(argv: Sequence[str]) -> int:
    return main([*argv, "--no-try"])


def write_logs(folder: Path, suffix: str = "parquet", **tables: pa.Table) -> Path:
    """Write a file of each table, with the argument's name. Return the folder."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, table in tables.items():
        (pa_csv.write_csv if suffix == "csv" else pq.write_table)(table, folder / f"{name}.{suffix}")
    return folder


def drafted(folder: Path, *options: str, source: Path | None = None) -> Workflow:
    """Workflow `my.py` in a folder that `init` writes for the files there, or for `source`."""
    assert init([str(source or folder), "--out", str(folder / "my.py"), *options]) == 0
    return load(folder / "my.py")


def splits_of(folder: Path) -> dict[str, Any]:
    """What `prepare` says of each split of the data made for `my.py`."""
    found: dict[str, Any] = json.loads((folder / "my_data" / "_prepared.json").read_bytes())["splits"]
    return found
