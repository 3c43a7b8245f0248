"""Times and wide numbers of a served model: what its metadata say, and requests, files and tables that follow it."""

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from test_servable import refuse

from pipeline.api import Calendar, export, open_run, score, train
from pipeline.features.times import TimeInput
from pipeline.serving import dense_files
from pipeline.serving.served_model import open_served
from pipeline.workflow import Category, Number

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
