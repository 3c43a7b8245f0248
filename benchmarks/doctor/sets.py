"""Data sets in which faults are planted: two real ones and a small synthetic one."""

from __future__ import annotations

from pathlib import Path

from pipeline.data.synthetic import generate
from pipeline.models import DeepFM
from pipeline.workflow import Category, Data, Model, Number, Schedule, Synthetic, Workflow
from workflows.criteo import workflow as criteo
from workflows.frappe import workflow as frappe

REAL = {"frappe": (frappe, "frappe_x1"), "criteo": (criteo, "criteo_1tb_sample")}
"""Workflow of each data set, and the name of its folder."""
KEYS = (200, 100, 60, 20, 7, 3)


def real(folder: Path) -> dict[str, Workflow]:
    """Workflows of the real data sets below a folder. Raises SystemExit, with the name, if one is missing."""
    if missing := [name for _, name in REAL.values() if not (folder / name).is_dir()]:
        raise SystemExit(
            f"{folder} lacks {', '.join(missing)}: name the folder that holds them with --data, or see with --quick "
            "how it runs on synthetic data"
        )
    return {name: _in(workflow, folder / below) for name, (workflow, below) in REAL.items()}


def _in(workflow: Workflow, root: Path) -> Workflow:
    return workflow.model_copy(update={"data": workflow.data.model_copy(update={"root": root})})


def synthetic(root: Path, train_rows: int = 20000) -> Workflow:
    """Generate clicks from a planted model below `root`, and return a workflow that treats them like any other data."""
    rows = {"train_examples": train_rows, "validation_examples": train_rows // 4, "test_examples": train_rows // 4}
    generate(Synthetic(**rows, keys_per_field=KEYS, num_numbers=2, zipf=1.05), root)
    return Workflow(
        name="synthetic",
        data=Data(
            root=root,
            train=("train",),
            validation=("validation",),
            test=("test",),
            labels=("label",),
            numbers=(Number(name="i0"), Number(name="i1")),
            categories=tuple(Category(name=f"c{f}") for f in range(len(KEYS))),
        ),
        model=Model(kind=DeepFM, embedding_dim=8, args={"hidden": (32,)}),
        schedule=Schedule(batch_size=512),
    )
