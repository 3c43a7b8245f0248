"""What the guard says of a rejected span's columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files.find import DataFile
from pipeline.spans import changes
from pipeline.spans.changes import Rows, changes_of
from pipeline.spans.guard import why_stopped

COLUMNS = ("click", "user", "item", "site", "tags")


def day(**columns: Any) -> dict[str, Any]:
    """Columns of 20 rows, of which the users are others each day."""
    plain = {"click": [0, 0, 0, 1] * 5, "item": [1, 2, 3, 4] * 5, "site": ["a", "b"] * 10, "tags": [[1], [2, 3]] * 10}
    return plain | columns


CHANGED: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "0.2500 (span before: 0.2500)", "none"),
    "labels": ({"click": [1, 1, 1, 0] * 5}, "0.7500 (span before: 0.2500)", "none"),
    "nulls": ({"item": [1, 2, None, 4] * 5}, "0.25", "'item', 25.0% null (before: 0.0%)"),
    "all null": ({"item": pa.nulls(20)}, "0.25", "'item', 100.0% null (before: 0.0%)"),
    "a missing column": ({"site": None}, "0.25", "'site', 100.0% null (before: 0.0%)"),
    "values": (
        {"site": pa.array(["a", "z"] * 10).dictionary_encode()}, "0.25", "'site', 50.0% unseen values (before: 0.0%)",
    ),
    "values of lists": ({"tags": [[9, 1], [2, 2]] * 10}, "0.25", "'tags', 25.0% unseen values (before: 0.0%)"),
    "no label": ({"click": pa.nulls(20, pa.int8())}, "nan", "'click', 100.0% null (before: 0.0%)"),
    "four columns": (
        {"click": [0, None] * 10, "item": [9, 2, 3, 4] * 5, "site": ["y", "z"] * 10, "tags": [None] * 19 + [[1]]},
        "0.0000",
        "'site', 100.0% unseen values (before: 0.0%); 'tags', 93.8% null (before: 0.0%); 'click', 50.0% null",
    ),
}  # fmt: skip


def rows_of(root: Path, number: int, columns: dict[str, Any]) -> list[Rows]:
    """The last 16 rows of a day, in two row groups."""
    path = root / f"{number}.parquet"
    known = {"user": range(100 * number, 100 * number + 20), **columns}
    pq.write_table(pa.table({name: of for name, of in known.items() if of is not None}), path, row_group_size=16)
    return [(DataFile(str(path)), 0, range(4, 16)), (DataFile(str(path)), 1, range(4))]


@pytest.mark.parametrize("what", CHANGED)
def test_mean_label_and_most_changed_columns_are_named(tmp_path: Path, what: str) -> None:
    columns, rate, named = CHANGED[what]
    spans = [rows_of(tmp_path, n, day(**(columns if n == 2 else {}))) for n in (2, 1, 0)]
    said = changes_of("click", COLUMNS, spans)
    assert said.startswith(f" Its mean label is {rate}")
    assert f"Columns that changed most: {named}" in said


def test_a_sample_is_spread_over_the_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_ROWS", 4)
    spans = [rows_of(tmp_path, n, day(item=[n == 2 and k > 15 for k in range(20)])) for n in (2, 1, 0)]
    assert "'item', 25.0% unseen values" in changes_of("click", COLUMNS, spans)


def test_a_file_that_is_gone_leaves_the_columns_out(tmp_path: Path) -> None:
    spans = [rows_of(tmp_path, n, day()) for n in (1, 0)]
    (tmp_path / "0.parquet").unlink()
    assert f"not compared with those of the spans before: {tmp_path / '0.parquet'}" in changes_of("click", (), spans)


@pytest.mark.parametrize(("ne", "stops"), [(0.9, False), (1.2, True)])
def test_a_span_scored_before_later_ones_is_judged_when_due(ne: float, stops: bool) -> None:
    scores = [("a", 0.9), ("b", 0.5), ("c", 0.9), ("b", ne)]
    epochs = [
        {"split": "span", "span": span, "ne": of, "examples": 9, "trained": n + 1, "calibration": 1.0}
        for n, (span, of) in enumerate(scores)
    ]
    assert (why_stopped("b", "abc", epochs, 0.1) is not None) is stops
