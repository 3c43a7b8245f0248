"""Workflows of `accuracy`, and data in Frappe's shape."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.large_batch.data import Planted, ensure
from pipeline.workflow import Workflow
from workflows.frappe import FIELDS, frappe

PUBLISHED = {
    "LR": (0.9356, 0.3076),
    "FM": (0.9671, 0.2065),
    "DNN": (0.98405, 0.1584),
    "WideDeep": (0.98307, 0.1540),
    "DeepFM": (0.98395, 0.1495),
    "DCN": (0.98342, 0.1507),
    "DCNv2": (0.98382, 0.1520),
    "xDeepFM": (0.98414, 0.1461),
}
"""Test AUC and logloss on Frappe_x1, from reczoo/BARS: means of five runs; for LR and FM of one run."""
FILES = ("train.parquet", "valid.parquet", "test.parquet")


def published(model: str, root: Path, seed: int, quick: bool) -> Workflow:
    """BARS settings for the model, on one thread. A quick run has fewer epochs, a smaller model and smaller batches."""
    fields = frappe(model).model_dump()
    fields["data"]["root"] = root
    fields["seed"] = seed
    fields["schedule"]["threads"] = 1
    if quick:
        fields["schedule"] |= {"epochs": 2, "batch_size": 128}
        if "hidden" in fields["model"]["args"]:
            fields["model"]["args"]["hidden"] = (16,)
    return Workflow.model_validate(fields)


def stand_in(root: Path) -> None:
    """Write files with Frappe's names and columns from a planted model; accuracies on them mean nothing."""
    keys = (500, 400, 7, 7, 2, 3, 2, 9, 60, 180)
    ensure(Planted(6400, 1000, keys), root)
    names = ["label", *FIELDS]
    for split, name in (("train", "train"), ("test", "valid"), ("test", "test")):
        table = pq.read_table(root / split / "part-0.parquet").rename_columns(names)
        pq.write_table(table, root / f"{name}.parquet", row_group_size=2000)
