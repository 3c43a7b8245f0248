"""A workflow of the prepared columns as a starting point: it trains without changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.data.files import SPLITS

DIM = 16
BYTES_PER_KEY = 1 << 9
"""Bytes of disk per key: a row of DIM weights and a first-order one with Adam's two moments, and as many stale rows."""
MAP_BYTES_PER_KEY = 1 << 6
MIN_DISK, MIN_MAP = 4 << 30, 64 << 20
TEXT = '''"""DeepFM on {rows:,} rows that pipeline.prepare made: positive rate {rate}, {keys:,} different keys.

A begin: see pipeline/workflow.py for what else can be said, and pipeline/models for other models.
"""

from pathlib import Path

from pipeline.models import DeepFM
from pipeline.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, {number}Schedule, Storage, Workflow

workflow = Workflow(
    name="{format}",
    data=Data(
        root=Path(__file__).parent,
{splits}
        labels=({labels},),
{numbers}        categories=(
{categories}
        ),
    ),
    model=Model(kind=DeepFM, embedding_dim={dim}, args={{"hidden": (400, 400)}}),
    optimizer=Optimizer(rows=Adam(lr=1e-3), dense=DenseAdam(lr=1e-3)),
    storage=Storage(device="128 MiB", host="128 MiB", disk="{disk} GiB", read="512 MiB", map="{map} MiB"),
    schedule=Schedule(batch_size=4096),
)
'''


def workflow_text(summary: Mapping[str, Any]) -> str:
    """Text of a Python file that pipeline.run can train; `summary` as in prepared.json."""
    columns, splits = summary["columns"], summary["splits"]
    names = {role: [n for n, c in columns.items() if c["role"] == role] for role in ("label", "number", "category")}
    keys = sum(columns[name]["unique_keys"] for name in names["category"])
    numbers = [_number(name, columns[name]) for name in names["number"]]
    return TEXT.format(
        format=summary["format"],
        rows=sum(split["rows"] for split in splits.values()),
        rate=", ".join(f"{rate:.4f}" for rate in splits["train"]["positive_rate"].values()),
        keys=keys,
        number="Number, " if numbers else "",
        splits="\n".join(f'        {split}=("{split}",),' for split in SPLITS if splits[split]["rows"]),
        labels=", ".join(map(_quoted, names["label"])),
        numbers="".join(["        numbers=(\n", *_lines(numbers), "        ),\n"]) if numbers else "",
        categories="".join(_lines([f"Category(name={_quoted(name)})" for name in names["category"]])).rstrip("\n"),
        dim=DIM,
        disk=_power_of_two(max(MIN_DISK, keys * BYTES_PER_KEY)) >> 30,
        map=_power_of_two(max(MIN_MAP, keys * MAP_BYTES_PER_KEY)) >> 20,
    )


def _number(name: str, column: Mapping[str, Any]) -> str:
    """Setting of a number: log1p if no value is negative. Integers with negative values are shifted by their minimum
    first, and null becomes the minimum; other numbers are used as they are."""
    minimum = column.get("least", 0)
    if minimum >= 0:
        return f"Number(name={_quoted(name)}, log1p=True)"
    if column["type"].startswith("int"):
        return f"Number(name={_quoted(name)}, fill={float(minimum)}, shift={float(-minimum)}, log1p=True)"
    return f"Number(name={_quoted(name)})"


def _lines(items: Sequence[str]) -> Iterator[str]:
    return (f"            {item},\n" for item in items)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
