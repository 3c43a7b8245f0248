"""Ten workflows, chosen before any constant was calibrated: sizes, models, batches, workers, rows, reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import keys_per_field


@dataclass(frozen=True)
class Scale:
    """Sizes of the data, and of the caps with which 90 % of the table is on disk."""

    few_keys: int = 300_000
    many_keys: int = 4_000_000
    examples: int = 1_000_000
    evaluated: int = 100_000
    batch: int = 4096
    memory: str = "1 GiB"
    device: str = "160 MiB"
    host: str = "96 MiB"


FULL = Scale()
QUICK = Scale(3_000, 20_000, 20_000, 2_000, 256, "64 MiB", "3 MiB", "3 MiB")


@dataclass(frozen=True)
class Case:
    """A workflow, as differences from the first one, and the arguments of its run."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by path, as for `--set`."""
    many_keys: bool = True
    arguments: tuple[str, ...] = ()


WIDE = {"model.args": {"hidden": [400, 400, 400]}}
CASES: dict[str, Case] = {
    "in memory": Case(many_keys=False),
    "page cache": Case(),
    "direct": Case({"storage.direct": True}),
    "MLP 400": Case(WIDE),
    "batch 16,384": Case({"schedule.batch_size": 16_384, "schedule.block_batches": 4}),
    "batch 512": Case({"schedule.batch_size": 512, "schedule.block_batches": 32}),
    "narrow rows": Case({"optimizer.rows.storage": {"weights": "bfloat16", "state": "bfloat16"}}),
    "compiled": Case({"model.compile": True}, many_keys=False),
    "DCN-V2, row-wise Adagrad, two epochs": Case({
        "model.kind": "pipeline.models.DCNv2", "optimizer.rows.kind": "rowwise_adagrad", "schedule.epochs": 2,
    }),
    "two workers": Case({"schedule.batch_size": 8192}, arguments=("--workers", "2")),
}  # fmt: skip
QUICK_CASES = ("in memory", "direct", "narrow rows")


def workflow_of(case: Case, scale: Scale, data: Path) -> dict[str, Any]:
    """Return the workflow of a case as JSON, without its changes."""
    num_keys = scale.many_keys if case.many_keys else scale.few_keys
    fields = keys_per_field(max(num_keys, 40_000)) if scale is FULL else (num_keys // 2, num_keys // 3, 100, 10)
    caps = {"device": scale.memory, "host": scale.memory}
    if case.many_keys:
        caps = {"device": scale.device, "host": scale.host}
    return {
        "name": "case",
        "data": {
            "root": str(data / f"planner_{num_keys}"), "train": ["train"], "validation": ["validation"],
            "labels": ["label"], "numbers": [{"name": f"i{n}"} for n in range(8)],
            "categories": [{"name": f"c{f}"} for f in range(len(fields))],
            "synthetic": {
                "train_examples": scale.examples, "validation_examples": scale.evaluated, "num_numbers": 8,
                "keys_per_field": fields, "zipf": 1.05,
            },
        },
        "model": {"kind": "pipeline.models.DeepFM", "embedding_dim": 16, "args": {"hidden": [64]}},
        "storage": {**caps, "disk": "20 GiB", "read": "512 MiB", "map": "512 MiB"},
        "schedule": {"batch_size": scale.batch, "block_batches": 8},
        "device": "cpu",
    }  # fmt: skip
