"""Workflows of `accuracy`: published settings, two forms of them for comparing the first steps, and data in Frappe's
shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.large_batch.data import Planted, ensure
from pipeline.data.agenda import Agenda
from pipeline.data.source import Source
from pipeline.preflight.first_window import first_window
from pipeline.preflight.sizes import SLACK
from pipeline.training.build import row_layout
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

ONE_BIT_OFF = "one_bit_off"
"""Name of the plain torch side whose initial embeddings are one bit larger."""
CALM_EPS, CALM_STD = 1e-5, 1e-2

SPARE = 1.03
"""Ratio of the rows of the device slab to those of the first two batches, in a run that must use all tiers."""
MIN_ROWS = 64
"""Minimum number of rows of the host slab in that run."""


def published(model: str, root: Path, seed: int, threads: int, quick: bool) -> Workflow:
    """BARS settings for the model. A quick run has fewer epochs, a smaller model and smaller batches."""
    fields = frappe(model).model_dump()
    fields["data"]["root"] = root
    fields["seed"] = seed
    fields["schedule"]["threads"] = threads
    if quick:
        fields["schedule"] |= {"epochs": 2, "batch_size": 128}
        _if_there(fields, "hidden", (16,))
    return Workflow.model_validate(fields)


def _if_there(fields: dict[str, Any], name: str, value: object) -> None:
    if name in fields["model"]["args"]:
        fields["model"]["args"][name] = value


def step_name(model: str, side: str, calm: bool) -> str:
    return f"{model}_{'calm' if calm else 'steps'}_{side}"


def first_steps(workflow: Workflow, num_steps: int, calm: bool) -> Workflow:
    """The workflow with only `num_steps` steps, no dropout, one batch per block, and slabs small enough that host and
    disk are used.

    `calm`: without batch norm, with a larger eps and larger initial embeddings, so that rounding is not amplified.
    """
    fields = workflow.model_dump()
    _if_there(fields, "dropout", 0.0)
    if calm:
        _if_there(fields, "batch_norm", False)
        fields["model"]["init_std"] = CALM_STD
        for part in ("rows", "dense"):
            fields["optimizer"][part]["eps"] = CALM_EPS
    fields["data"] |= {"validation": (), "test": ()}
    source = Source(workflow.data, workflow.seed)
    examples, batch_size = source.num_examples["train"], workflow.schedule.batch_size
    epochs = -(-num_steps // -(-examples // batch_size))
    fields["schedule"] |= {"epochs": epochs, "block_batches": 1, "look_ahead": 1, "plateau": None}
    fields["commit"] |= {"every_minutes": None, "keep_best": False}
    agenda = Agenda({"train": examples}, batch_size, 1)
    window = first_window(source, agenda.blocks(1), workflow.storage.read)
    source.close()
    ring, union = 2 * int(SLACK * max(window.keys_of_blocks)), int(SPARE * window.union_of_first[1])
    host = max(MIN_ROWS, (window.union_of_first[-1] - union) // 3)
    row_bytes = row_layout(workflow).num_bytes
    fields["storage"]["device"] = (ring + union) * row_bytes
    fields["storage"]["host"] = (ring + workflow.storage.chunk_rows + host) * row_bytes
    return Workflow.model_validate(fields)


def stand_in(root: Path) -> None:
    """Write files with Frappe's names and columns from a planted model; accuracies on them mean nothing."""
    keys = (500, 400, 7, 7, 2, 3, 2, 9, 60, 180)
    ensure(Planted(6400, 1000, keys), root)
    names = ["label", *FIELDS]
    for split, name in (("train", "train"), ("test", "valid"), ("test", "test")):
        table = pq.read_table(root / split / "part-0.parquet").rename_columns(names)
        pq.write_table(table, root / f"{name}.parquet", row_group_size=2000)
