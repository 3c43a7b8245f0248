"""Frames of pandas, polars and Arrow, and times in requests: each is read as the same values in Arrow, or refused."""

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from support.data.parquet_files import examples_in
from test_servable import refuse

from pipeline.api import Calendar, export, open_run, score, train
from pipeline.data.files import columns_of
from pipeline.data.outside import Outside
from pipeline.data.source import layout_of
from pipeline.data.table import TableReader
from pipeline.features.times import TimeInput
from pipeline.serving import dense_files
from pipeline.serving.predictor import as_table
from pipeline.serving.served_model import open_served
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


BEGIN = datetime(2020, 5, 17, 20, 30, tzinfo=UTC)
SHIFT = -1_589_747_000.0


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run on an hour, with zone, and on seconds of which a shift leaves little; training is in ms, the test in ns."""
    root = write_data(tmp_path_factory.mktemp("data"), num_train=30, num_keys=9)
    for path in root.glob("*.parquet"):
        table = pq.read_table(path)
        times = [BEGIN + timedelta(hours=n) for n in range(table.num_rows)]
        when = pa.array(times, pa.timestamp("ns" if "test" in path.name else "ms", "UTC"))
        seconds = when.cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
        pq.write_table(table.append_column("when", when).append_column("seconds", seconds), path)
    workflow = make_workflow(root, epochs=1, categories=(Category(name="hour"), Category(name="item")))
    workflow = workflow.with_settings({
        "data.features": [Calendar(column="when", take={"hour": "hour"}).model_dump()],
        "data.numbers": [Number(name="seconds", shift=SHIFT).model_dump()],
    })  # fmt: skip
    train(workflow, root / "run", serial=True, verbose=False).close()
    return root / "run"


def test_the_example_is_answered_with_what_predict_says(run_dir, tmp_path, monkeypatch):
    """Float32 does not distinguish seconds, so the number with a shift is announced in 64 bits."""
    monkeypatch.setattr(dense_files, "exported", refuse)
    export(run_dir, tmp_path / "out")
    table = pq.read_table(run_dir.parent / "test.parquet")
    score(run_dir, str(run_dir.parent / "test.parquet"), tmp_path / "scores")
    logits = pq.read_table(tmp_path / "scores/test.parquet").column("click.logit").to_pylist()[:2]
    with open_run(run_dir) as run:
        assert run.predict(table).column("click.logit").to_pylist()[:2] == pytest.approx(logits, abs=1e-6)
    answer = json.loads((tmp_path / "out/response.json").read_text())
    assert answer["outputs"][0]["data"] == pytest.approx(logits, abs=1e-5)
    inputs = {one["name"]: one for one in json.loads((tmp_path / "out/request.json").read_text())["inputs"]}
    assert inputs["when"]["data"] == [int(one.timestamp()) * 1000 for one in table.column("when").to_pylist()[:2]]
    with closing(open_served(tmp_path / "out", 1 << 24, None, "torch")) as served:
        assert next(spec for spec in served.inputs if spec.time).time.years == (2020, 2020)
        types = {spec.name: spec.datatype for spec in served.inputs if spec.name != "item"}
        assert types == {"seconds": "FP64", "when": "INT64"}


@pytest.mark.parametrize(
    ("years", "values", "said"),
    [
        ((1930, 2009), [-(10**15), 10**15], ""),
        ((1930, 2009), [2 * 10**15], "is in 2033 in us, and training had 1930 to 2009"),
        ((2020, 9999), [253402214400000000, None], ""),
        ((2020, 2020), [1_700_000_000], "is in 1970 in us, but in 2023 in s, and training had 2020 to 2020"),
        (None, [-(10**15), 0, None], ""),
        (None, [1_700_000_000_000], "is in 1970 in us, but in 2023 in ms; expected"),
        (None, [1_700_000_000_000_000_000], "in 2023 in ns"),
    ],
)
def test_integers_far_from_the_years_of_training_are_refused(years, values, said):
    """Dates of birth and "never" are times like others. Without the years, a value has to fit another unit better."""
    time = TimeInput("when", pa.timestamp("us"), "us", None, years)
    given = pa.chunked_array([pa.array(values, pa.int64())])
    if not said:
        assert time.read(given).cast("int64") == given
        return
    with pytest.raises(ValueError, match=f"column 'when': .*{said}"):
        time.read(given)
