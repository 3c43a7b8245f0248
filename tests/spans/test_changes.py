"""What the guard says of a rejected span's columns."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files.find import DataFile
from pipeline.spans import changes
from pipeline.spans.guard import why_stopped

PLAIN = {"click": [0, 0, 0, 1] * 5, "item": [1, 2, 3, 4] * 5, "site": ["a", "b"] * 10, "tags": [[1], [2, 3]] * 10}


def spans_of(root: Path, **columns: Any) -> list[list[changes.Rows]]:
    """Last rows of three days in two row groups, the newest, with these columns, first. Each day has other users."""
    for n, changed in enumerate(({}, {}, columns)):
        day = {"user": range(100 * n, 100 * n + 20), **PLAIN, **changed}
        pq.write_table(pa.table({name: of for name, of in day.items() if of is not None}), root / f"{n}", 16)
    files = [DataFile(str(root / f"{n}")) for n in (2, 1, 0)]
    return [[(file, 0, range(4, 16)), (file, 1, range(4))] for file in files]


@pytest.mark.parametrize(("columns", "rate", "named"), [
    ({}, "0.2500 (before: 0.2500)", "none."),
    ({"click": [1, 1, 1, 0] * 5}, "0.7500 (before: 0.2500)", "none."),
    ({"item": [1, 2, None, 4] * 5}, "0.25", "'item', 25.0% null (before: 0.0%)."),
    ({"site": None}, "0.25", "'site', 100.0% null (before: 0.0%)."),
    ({"site": pa.array(["a", "z"] * 10).dictionary_encode()}, "0.25", "'site', 50.0% unseen values (before: 0.0%)."),
    ({"tags": [[9, 1], [2, 2]] * 10}, "0.25", "'tags', 25.0% unseen values (before: 0.0%)."),
    ({"click": pa.nulls(20), "item": [9, 2, 3, 4] * 5, "site": ["y", "z"] * 10, "tags": [None] * 20}, "nan",
     "'click', 100.0% null (before: 0.0%); 'site', 100.0% unseen values (before: 0.0%); 'tags', 100.0% null"),
])  # fmt: skip
def test_mean_label_and_most_changed_columns_are_named(tmp_path, columns, rate, named):
    said = changes.changes_of("click", ("click", "user", "item", "site", "tags"), spans_of(tmp_path, **columns))
    assert said.startswith(f" Its mean label is {rate}")
    assert f"Columns that changed most: {named}" in said


def test_a_sample_is_spread_and_a_file_that_is_gone_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "MOST_ROWS", 4)
    spans = spans_of(tmp_path, item=[1] * 16 + [9] * 4)
    assert "'item', 25.0% unseen values" in changes.changes_of("click", ("item",), spans)
    (tmp_path / "1").unlink()
    assert f"not compared with those of the spans before: {tmp_path / '1'}" in changes.changes_of("click", (), spans)


@pytest.mark.parametrize(("ne", "stops"), [(0.9, False), (1.2, True)])
def test_a_span_scored_before_later_ones_is_judged_when_due(ne, stops):
    scores = [("a", 0.9), ("b", 0.5), ("c", 0.9), ("b", ne)]
    of = {"split": "span", "examples": 9, "trained": 1, "calibration": 1.0}
    epochs = [of | {"span": span, "ne": value} for span, value in scores]
    assert (why_stopped("b", "abc", epochs, 0.1) is not None) is stops
