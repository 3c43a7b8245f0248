"""What is said when a file, a column or a value is not what the workflow says: where, what, and what to change."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.parquet_files import data_of, epoch_of, write

from pipeline.data.identity import stamp_of
from pipeline.data.source import Source
from pipeline.workflow import Metrics, Number


def refusal(data, group=None):
    """The message with which the data is refused, when opened or when read."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (each caller checks the words)
        epoch_of(Source(data, 0, metrics=Metrics(group=group)))
    return str(caught.value)


BAD_VALUES = {
    "label": ([0, 1, None, 2], "2 bad values in rows 0 to 3, the first is None at row 2", "data.labels"),
    "w": ([1.0, -1.0, math.inf, 0.0], "2 bad values in rows 0 to 3, the first is -1.0 at row 1", "data.weight"),
    "x": ([0.0, -1.0, 0.0, None], "1 bad values in rows 0 to 3, the first is -1.0 at row 1", "`fill` or `shift`"),
    "y": ([0.0, 0.0, 0.0, math.inf], "1 bad values in rows 0 to 3, the first is inf at row 3", "`fill` or `shift`"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_bad_value_is_refused_with_its_location(tmp_path, name):
    columns = {"label": [0] * 4, "w": [1.0] * 4, "x": [0.0] * 4, "y": [0.0] * 4, "c": [0] * 4}
    values, found, advice = BAD_VALUES[name]
    write(tmp_path / "train/a.parquet", **columns | {name: values})
    numbers = (Number(name="x", log1p=True), Number(name="y"))
    message = refusal(data_of(tmp_path, weight="w", numbers=numbers))
    assert f"{tmp_path}/train/a.parquet: row group 0, column {name!r}" in message
    assert found in message
    assert advice in message


BAD_TYPES = [
    ("label", ["yes"], "string", "data.labels", "integers or numbers;"),
    ("x", [[1]], "list<element: int64>", "data.numbers", "integers or numbers;"),
    ("c", [1.5], "double", "data.categories", "1.5 at row 0 is not an integer"),
    ("c", [[[1]]], "list<element: list<element: int64>>", "data.categories", "or lists of text;"),
    ("user", [[1]], "list<element: int64>", "metrics.group", "integers or numbers or text;"),
]


@pytest.mark.parametrize(("name", "values", "found", "setting", "expected"), BAD_TYPES)
def test_a_wrong_column_type_is_refused_by_name(tmp_path, name, values, found, setting, expected):
    write(tmp_path / "train/a.parquet", **{"label": [0], "x": [0.0], "c": [1], "user": [1]} | {name: values})
    message = refusal(data_of(tmp_path, numbers=(Number(name="x"),)), group="user")
    for words in (str(tmp_path / "train/a.parquet"), f"column {name!r} ({setting})", found, expected, "convert"):
        assert words in message


NO_ROWS = {"label": pa.array([], "int8"), "c": pa.array([], "int64")}
REFUSED = {
    "a missing column": (
        {"label": [0], "d": [1]}, {},
        ["train/a.parquet: column 'c' (data.categories) is missing", "which has: label, d"],
    ),
    "no file": (
        {"label": [0], "c": [1]}, {"validation": ("day_*",)},
        ["data.validation: 'day_*' matches no Parquet file", "{root}/day_*", "data.root"],
    ),
    "no rows": (NO_ROWS, {}, ["data.train: no file of train has rows; name files that have"]),
    "cut off": (None, {}, ["train/a.parquet: cannot be read as Parquet"]),
}  # fmt: skip
"""Columns of a file, settings, and what the refusal says."""


@pytest.mark.parametrize("what", REFUSED)
def test_data_that_do_not_fit_are_refused_by_what_to_change(tmp_path, what):
    columns, settings, said = REFUSED[what]
    write(tmp_path / "train/a.parquet", **columns or NO_ROWS)
    if columns is None:
        (tmp_path / "train/a.parquet").write_bytes(b"PAR1 and no more")
    message = refusal(data_of(tmp_path, **settings))
    assert all(words.format(root=tmp_path) in message for words in said)


def test_a_file_damaged_during_a_run_is_refused_with_its_place(tmp_path):
    path = tmp_path / "train/a.parquet"
    columns = {"label": [0] * 4000, "c": np.random.default_rng(0).integers(0, 1 << 60, 4000)}
    path.parent.mkdir()
    pq.write_table(pa.table(columns), path, row_group_size=2000, use_dictionary=False)
    source = Source(data_of(tmp_path, shuffle_window=0), 0)
    metadata = pq.read_metadata(path)
    content = bytearray(path.read_bytes())
    at = metadata.row_group(1).column(1).data_page_offset
    content[at : at + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.parquet: row group 1: cannot be read, is the file complete") as caught:
        epoch_of(source, 500, 2)
    assert caught.value.__cause__ is not None


def test_a_file_that_goes_during_the_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.parquet existed when the run began, and is gone"):
        stamp_of(tmp_path / "a.parquet")
