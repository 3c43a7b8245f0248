"""The workflow of a prepared data set, as a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.data.files import SPLITS
from pipeline.prepare.draft import Draft, number_setting, quoted, workflow_name, workflow_text


def stub_text(summary: Mapping[str, Any], folder: str) -> str:
    """Text of a workflow file; `summary` as in _prepared.json. `folder`: name of the output's folder."""
    return workflow_text(draft_of(summary, workflow_name(folder), "Path(__file__).parent"))


def draft_of(summary: Mapping[str, Any], name: str, root: str) -> Draft:
    """Draft of the workflow of a prepared data set. `root`: expression of the data's folder."""
    columns, splits = summary["columns"], summary["splits"]
    names = {role: [n for n, c in columns.items() if c["role"] == role] for role in ("label", "number", "category")}
    rate = ", ".join(f"{rate:.4f}" for rate in splits["train"]["positive_rate"].values())
    rows = sum(split["rows"] for split in splits.values())
    return Draft(
        name=name,
        what=f"{rows:,} rows that pipeline.prepare made: positive rate {rate}",
        root=root,
        splits={split: (split,) for split in SPLITS if splits[split]["rows"]},
        labels=names["label"],
        numbers=[_number(name, columns[name]) for name in names["number"]],
        categories=[f"Category(name={quoted(name)})" for name in names["category"]],
        num_rows=splits["train"]["rows"],
    )


def _number(name: str, column: Mapping[str, Any]) -> str:
    return number_setting(name, column.get("least", 0), column.get("greatest", 2), column["type"].startswith("int"))
