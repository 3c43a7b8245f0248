"""The three logs with times, each as spans of examples with the same fields for every learner."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MAX_HISTORY = 10
"""Number of most recent values of a user's history that form a field."""


@dataclass(frozen=True, slots=True)
class Log:
    name: str
    pattern: str
    """Files, one for each span."""
    label: str
    fields: tuple[str, ...]
    lists: tuple[str, ...]
    """Fields that are lists."""
    pair: str
    """First letters of the names of the user's and the item's field."""
    tuned: int
    """Number of first spans, on which settings are chosen; the others are compared."""
    add: Callable[[pa.Table], pa.Table] = lambda table: table
    """Adds columns."""


def _kuairand(table: pa.Table) -> pa.Table:
    seconds = np.maximum(1, table["duration_ms"].to_numpy()) / 1000
    return table.append_column("duration", pa.array(np.log2(seconds).round().astype(np.int64)))


LOGS = (
    Log(
        "kuairand", "kuairand_14days/day_*.parquet", "is_click",
        ("user_id", "video_id", "hour", "duration", "hist_videos"), ("hist_videos",), "uv", 4, _kuairand,
    ),
    Log(
        "movietweetings", "movietweetings_100k/week_*.parquet", "label",
        ("user_id", "item_id", "item_genres", "hist_items"), ("item_genres", "hist_items"), "ui", 6,
    ),
    Log(
        "adclick", "adclick_6days/day_*.parquet", "label",
        ("user_id", "product", "campaign_id", "webpage_id", "gender", "product_category_1", "product_category_2",
         "user_group_id", "age_level", "user_depth", "city_development_index", "var_1", "hour"), (), "up", 2,
    ),
)  # fmt: skip


def spans_of(log: Log, shared: Path) -> list[pa.Table]:
    """Examples of each span, in order of time: the label and the fields; a null is the text "none"."""
    tables = []
    for file in sorted(shared.glob(log.pattern)):
        table = log.add(pq.read_table(file))
        columns = {log.label: table[log.label]}
        for name in log.fields:
            column = table[name]
            if name in log.lists:
                cut = [(values or [])[-MAX_HISTORY:] for values in column.to_pylist()]
                columns[name] = pa.array(cut, pa.list_(pa.int64()))
            else:
                columns[name] = pa.array([str(v) if v is not None else "none" for v in column.to_pylist()])
        tables.append(pa.table(columns))
    return tables


def write_lines(log: Log, spans: list[pa.Table], path: Path) -> None:
    """Write the examples as `online_learners` reads them."""
    with path.open("w") as file:
        for number, table in enumerate(spans):
            for row in table.to_pylist():
                fields = {
                    name: [str(value) for value in row[name]] if name in log.lists else [row[name]]
                    for name in log.fields
                }
                file.write(json.dumps([number, int(row[log.label]), fields]) + "\n")


def made_log(num_spans: int = 6, rows: int = 400) -> tuple[Log, list[pa.Table]]:
    """A synthetic log in which values of two fields have slowly changing rates."""
    rng, spans = np.random.default_rng(0), []
    worth, taste = rng.normal(size=60), rng.normal(size=40)
    for _ in range(num_spans):
        worth += 0.2 * rng.normal(size=60)
        item, user = rng.integers(0, 60, rows), rng.integers(0, 40, rows)
        click = rng.random(rows) < 1 / (1 + np.exp(-worth[item] - taste[user]))
        columns = {"click": click.astype(np.int8), "user": user.astype(str), "item": item.astype(str)}
        spans.append(pa.table(columns))
    return Log("made", "", "click", ("user", "item"), (), "ui", 3), spans
