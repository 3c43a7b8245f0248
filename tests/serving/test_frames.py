"""Frames of pandas, polars and Arrow: each is read as the Arrow table with the same values, or refused in one line."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from support.data.parquet_files import examples_in

from pipeline.data.files import columns_of
from pipeline.data.outside import Outside
from pipeline.data.source import layout_of
from pipeline.data.table import TableReader
from pipeline.serving.predictor import as_table
from pipeline.workflow import Category, Data, Number

KINDS = {"user": "integers", "site": "text", "tags": "lists of text"}
DATA = Data(train=("x",), labels=("y",), numbers=(Number(name="price", fill=2.0),),
            categories=tuple(Category(name=name) for name in KINDS))  # fmt: skip
NAMES = ("price", *KINDS)
ROWS = [
    {"user": 3, "site": "a", "tags": ["p", "q"], "price": 1.5},
    {"user": None, "site": None, "tags": [], "price": None},
    {"user": 5, "site": "a", "tags": None, "price": 0.0},
]


def read(data):
    layout = layout_of(DATA, KINDS)
    columns = [column for column in columns_of(DATA) if column.setting != "data.labels"]
    reader = TableReader(columns, KINDS, layout)
    blocks = reader.batches(as_table(data, NAMES), 7, Outside("clip"))
    return [one[1:] for block in blocks for one in examples_in(SimpleNamespace(layout=layout), block)]


def pandas_frames(rows):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rows)
    yield from (frame, frame[frame.columns[::-1]].assign(more=1), frame.astype({"site": "category"}))
    yield from (frame.astype({"user": "Int64"}), frame.astype({"user": "float64"}), frame.convert_dtypes())


def polars_frames(rows):
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        rows, schema={"user": pl.Int64, "site": pl.String, "tags": pl.List(pl.String), "price": pl.Float64}
    )
    site = pl.col("site")
    yield from (frame, frame.lazy(), frame.with_columns(site.cast(pl.Categorical)))
    yield from (frame.with_columns(site.cast(pl.Enum(["a"]))), frame.with_columns(pl.col("user").cast(pl.UInt16)))
    yield frame.with_columns(pl.col("price").cast(pl.Decimal(10, 3)), pl.col("user").cast(pl.Decimal(20, 0)))


class Foreign:
    """Table of another library: nothing but a stream of Arrow's C interface."""

    def __init__(self, table):
        self.__arrow_c_stream__ = table.__arrow_c_stream__


def arrow_tables(rows):
    table = pa.Table.from_pylist(rows)
    yield from (rows, table, table.to_reader(), table.to_pydict(), Foreign(table))
    yield from table.combine_chunks().to_batches()


@pytest.mark.parametrize("frames", [pandas_frames, polars_frames, arrow_tables])
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[1:2], ROWS[2:]], ids=["all", "first", "nulls", "no list"])
def test_every_frame_is_read_as_the_rows_that_it_has(frames, rows):
    kinds = {"user": pa.int64(), "site": pa.string(), "tags": pa.list_(pa.string()), "price": pa.float64()}
    whole = read(pa.Table.from_pylist(ROWS, pa.schema(kinds)))
    want = [whole[ROWS.index(row)] for row in rows]
    for number, frame in enumerate(frames(rows)):
        assert read(frame) == want, number


@pytest.mark.parametrize("data", [3, "log.parquet", [1], np.zeros(3), {"user": [1, "a"]}, {"user": [1], "site": []}])
def test_what_is_no_frame_is_refused_in_one_line(data):
    with pytest.raises(ValueError, match="are not a table") as caught:
        as_table(data, NAMES)
    assert not isinstance(caught.value, pa.ArrowException)


def test_a_frame_without_a_column_is_no_file():
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"column 'user' .* is missing") as caught:
        read(pd.DataFrame(ROWS).drop(columns="user"))
    assert "correct the table" in str(caught.value)
    assert "file" not in str(caught.value)


LARGE = 2**63 + 5
BAD = [object(), {}, 1]
"""Values that Arrow cannot convert, in a column that the model does not read."""


def of_pandas(**columns):
    return pytest.importorskip("pandas").DataFrame({**columns, "other": BAD}, dtype=object)


def of_polars(**columns):
    pl = pytest.importorskip("polars")
    return pl.DataFrame({**columns, "other": pl.Series(BAD, dtype=pl.Object)})


GIVEN = {
    "absent keys": (lambda: [{"user": 3, "site": "a"}, {"price": 1.0}, {"tags": ["p"]}],
                    {"user": [3, None, None], "site": ["a", None, None], "tags": [None, None, ["p"]],
                     "price": [None, 1.0, None]}),
    "a key absent in all": (lambda: [{"user": 3}] * 3, {"user": [3] * 3, "site": [None] * 3}),
    "large in rows": (lambda: [{"user": LARGE}, {"user": 1}, {}], {"user": [LARGE, 1, None]}),
    "large in columns": (lambda: {"user": [LARGE, 1, None], "other": BAD}, {"user": [LARGE, 1, None]}),
    "large in lists": (lambda: {"tags": [[LARGE, 1], None, []], "other": BAD}, {"tags": [[LARGE, 1], None, []]}),
    "large in pandas": (lambda: of_pandas(user=[LARGE, 1, None]), {"user": [LARGE, 1, None]}),
    "pandas": (lambda: of_pandas(user=[3, 1, None]), {"user": [3, 1, None]}),
    "polars": (lambda: of_polars(user=[3, 1, None]), {"user": [3, 1, None]}),
    "polars, lazy": (lambda: of_polars(user=[3, 1, None]).lazy(), {"user": [3, 1, None]}),
    "an empty chunk": (lambda: pa.table({"site": pa.array(["a", "b"]).slice(2)}), {"site": []}),
}  # fmt: skip
"""Inputs of `predict`, each with the columns that it reads."""


@pytest.mark.parametrize("name", GIVEN)
def test_only_the_columns_of_the_model_are_converted(name):
    data, want = GIVEN[name]
    table = as_table(data(), NAMES).to_pydict()
    assert table.keys() <= {*NAMES}
    assert {column: table[column] for column in want} == want


@pytest.mark.parametrize(
    ("rows", "said"),
    [([{"User": 3, "site": "a"}], "no row has 'user', but there is 'User'"), ([{"x": 1}], "no row has any")],
)
def test_rows_of_other_names_are_refused(rows, said):
    with pytest.raises(ValueError, match=said):
        as_table(rows, NAMES)


def test_values_in_dicts_within_rows_have_names_with_dots():
    rows = [{"user": {"id": 3}}, {"user": None}, {}, {"user.id": 4}]
    assert as_table(rows, ["user.id"]).to_pydict() == {"user.id": [3, None, None, 4]}


def test_chunks_without_rows_at_an_offset_are_read():
    table = pa.Table.from_pylist(ROWS)
    assert read(table.slice(3)) == []
    chunks = {name: [table[name].chunk(0).slice(3), table[name].chunk(0)] for name in table.column_names}
    assert read(pa.table({name: pa.chunked_array(both) for name, both in chunks.items()})) == read(table)
