"""Workflows of `narrow_rows`: real and planted data, rows in lazy and in dense semantics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cases import stand_in
from pipeline.models import DeepFM
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, Number, Schedule, Storage, Synthetic, Workflow
from workflows.criteo import workflow as criteo
from workflows.frappe import frappe

PLANTED_STEPS, PLANTED_BATCH = 30_000, 256
STORED: dict[str, Any] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "bfloat16, v float32": {"weights": "bfloat16", "state": "bfloat16", "v": "float32"},
    "float16": "float16",
}
"""Compared formats. The first is the reference for the others."""


def planted(root: Path, semantics: str, quick: bool) -> Workflow:
    """30,000 steps on clicks of a planted model: one epoch of examples that are never seen twice."""
    keys, batch = (50_000, 5_000, 500, 50, 5), PLANTED_BATCH
    examples = batch * (40 if quick else PLANTED_STEPS)
    return Workflow(
        name="planted",
        data=Data(
            root=root / "planted",
            train=("train",),
            test=("test",),
            labels=("click",),
            numbers=(Number(name="i0"),),
            categories=tuple(Category(name=f"c{n}") for n in range(len(keys))),
            synthetic=Synthetic(
                train_examples=examples, validation_examples=0, test_examples=min(examples, 200_000),
                keys_per_field=keys, num_numbers=1, zipf=1.05,
            ),
        ),
        model=Model(kind=DeepFM, embedding_dim=8, args={"hidden": (32,)}),
        optimizer=Optimizer(rows=Adam(lr=1e-3, semantics=semantics), dense=DenseAdam(lr=1e-3)),
        storage=Storage(device="32 MiB", host="32 MiB", disk="2 GiB", read="64 MiB", map="32 MiB"),
        schedule=Schedule(batch_size=batch, block_batches=32),
    )  # fmt: skip


def frappe_small(root: Path, semantics: str, quick: bool) -> Workflow:
    """DeepFM with one layer of 64, eight epochs, without batch norm or dropout."""
    return _frappe(root, semantics, quick, {"hidden": (64,)}, 2 if quick else 8)


def frappe_published(root: Path, semantics: str, quick: bool) -> Workflow:
    """The published settings of DeepFM, with twelve epochs and their best one."""
    return _frappe(root, semantics, quick, None, 2 if quick else 12)


def _frappe(root: Path, semantics: str, quick: bool, args: dict[str, Any] | None, epochs: int) -> Workflow:
    fields = frappe("DeepFM").model_dump()
    if quick and not (root / "frappe_x1" / "train.parquet").exists():
        stand_in(root / "frappe_x1")
    fields["data"]["root"] = root / "frappe_x1"
    fields["optimizer"]["rows"]["semantics"] = semantics
    if args:
        fields["model"]["args"] = args
        fields["optimizer"]["rows"]["l2"] = 1e-3
    fields["schedule"] |= {"epochs": epochs, "threads": 1}
    fields["storage"] |= {"device": 16 << 20, "host": 16 << 20}
    return Workflow.model_validate(fields)


def criteo_sample(root: Path, semantics: str, quick: bool) -> Workflow:
    """DeepFM with two layers of 200 on the sample of Criteo's logs, three epochs."""
    fields = criteo.model_dump()
    fields["data"]["root"] = root / "criteo_1tb_sample"
    fields["model"]["args"] = {"hidden": (200, 200)}
    fields["optimizer"]["rows"]["semantics"] = semantics
    fields["schedule"] |= {"epochs": 3, "batch_size": 1000, "plateau": None, "threads": 1}
    fields["storage"] |= {"device": 64 << 20, "host": 64 << 20}
    return Workflow.model_validate(fields)


CASES: dict[str, Callable[[Path, str, bool], Workflow]] = {
    "planted": planted,
    "frappe_small": frappe_small,
    "frappe_published": frappe_published,
    "criteo_sample": criteo_sample,
}


def workflow_of(case: str, root: Path, semantics: str, stored: str, seed: int, quick: bool) -> Workflow:
    fields = CASES[case](root, semantics, quick).model_dump()
    fields["seed"] = seed
    fields["optimizer"]["rows"]["storage"] = STORED[stored]
    fields["commit"] |= {"every_minutes": None}
    return Workflow.model_validate(fields)
