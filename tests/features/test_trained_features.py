"""Features in use: tiers change no bit, and training, scoring, serving and requests make the same of an example."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow
from support.data.parquet_files import rewritten, with_columns
from support.depth import some
from support.oracle.features import with_made
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, run

from pipeline.api import (
    Bucket,
    Calendar,
    Cross,
    Lookup,
    Rare,
    Standardize,
    export,
    open_run,
    open_servable,
    score,
    train,
)
from pipeline.data.files import columns_of, resolve
from pipeline.data.outside import Outside
from pipeline.data.source import layout_of
from pipeline.data.table import TableReader
from pipeline.features.derived import Derived
from pipeline.features.side_files import COLUMNS
from pipeline.files.description import Description
from pipeline.files.flat import open_file
from pipeline.serving.commit import open_commit
from pipeline.serving.http.request import read_request
from pipeline.serving.served_model import ServedModel, inputs_of
from pipeline.verify import verify
from pipeline.workflow import Category, Number

NUMBERS = (Number(name="price_std"), Number(name="x0"), Number(name="brand_price"))
CATEGORIES = (
    Category(name="history", table="item", pooling="mean"), Category(name="item"), Category(name="country"),
    Category(name="age_bucket"), Category(name="cell"), Category(name="hour"), Category(name="brand"),
)  # fmt: skip
FEATURES = (
    Bucket(column="age", name="age_bucket", edges=(2.0, 5.0, 7.0)),
    Standardize(column="price", name="price_std", mean=0.4, std=0.3, clip=2.0),
    Calendar(column="when", take={"hour": "hour"}, zone="Asia/Kathmandu"),
    Lookup(column="item", file="items.parquet", key="id", take={"brand": "brand", "price": "brand_price"}),
    Cross(columns=("brand", "age_bucket", "user"), name="cell"),
    Rare(column="country", at_least=3, counts="country.parquet", nulls=True),
    Rare(column="item", at_least=2, counts="item.parquet", unseen=False),
)


def with_times(table, seed):
    seconds = np.random.default_rng(seed).integers(0, 2_000_000_000, table.num_rows)
    times = pa.array(seconds, pa.timestamp("s", "UTC"), mask=seconds % 9 == 0).cast(pa.timestamp("us", "UTC"))
    return table.append_column("when", times)


@pytest.fixture(scope="module")
def root(data_root, tmp_path_factory):
    """The small data with a column of times, and the files that the features read."""
    folder = tmp_path_factory.mktemp("features")
    for n, path in enumerate(sorted(data_root.glob("*.parquet"))):
        pq.write_table(with_times(pq.read_table(path), n), folder / path.name, row_group_size=8)
    pq.write_table(
        pa.table({"id": range(40), "brand": [f"b{n % 6}" for n in range(40)], "price": np.linspace(-1, 1, 40)}),
        folder / "items.parquet",
    )
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("train*.parquet"))])
    for name in ("country", "item"):
        counts = table.column(name).drop_null().value_counts()
        columns = pa.table({"value": counts.field("values"), "count": counts.field("counts")})
        metadata = {COLUMNS: json.dumps([name])}
        pq.write_table(columns.replace_schema_metadata(metadata), folder / f"{name}.parquet")
    return folder


def make(root, **changes):
    workflow = make_workflow(root, categories=CATEGORIES, **changes)
    return workflow.with_settings({
        "data.numbers": [n.model_dump() for n in NUMBERS], "data.features": [f.model_dump() for f in FEATURES],
    })  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    train(make(root, epochs=1), out, serial=True, verbose=False).close()
    return out


@pytest.mark.parametrize("policy", some(["lru", "foresight"], "foresight"))
def test_tiers_change_no_bit_of_features(root, policy):
    workflow = make(root, storage={"device_policy": policy})
    assert run(workflow, **THREE_TIERS)["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.parametrize("rules", [FEATURES[5:], FEATURES[:5]], ids=["rare values alone", "made columns alone"])
def test_tiers_change_no_bit_of_some_features(root, rules):
    categories = [c.model_dump() for c in CATEGORIES if c.name in ("history", "item", "country")]
    features = {"data.features": [rule.model_dump() for rule in rules]}
    if rules[0].kind == "rare":
        features |= {"data.numbers": [NUMBERS[1].model_dump()], "data.categories": categories}
    workflow = make(root).with_settings(features)
    assert run(workflow, **THREE_TIERS)["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.prove
def test_two_workers_train_on_what_plain_loops_make(root, tmp_path):
    """The same columns, made before and written to files, give the same run."""
    workflow = make(root, epochs=1)
    plain = [feature.model_dump() for feature in FEATURES if feature.kind == "rare"]
    for path in root.glob("*.parquet"):
        if path.name.startswith(("train", "validation", "test")):
            rows = with_made(workflow.data, pq.read_table(path).to_pylist())
            table = pq.read_table(path)
            for feature in FEATURES:
                for name in feature.makes:
                    kind = pa.uint64() if feature.kind == "cross" else None
                    table = table.append_column(name, pa.array([row[name] for row in rows], kind))
            pq.write_table(table, tmp_path / path.name, row_group_size=8)
        else:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    made_before = make(tmp_path, epochs=1).with_settings({"data.features": plain})
    found = []
    for name, one in (("made", workflow), ("plain", made_before)):
        with train(one, tmp_path / f"run-{name}", workers=2, verbose=False) as opened:
            found.append(opened.result["fingerprint"])
    assert found[0] == found[1]


def test_a_file_scored_is_as_its_table_and_servable(root, run_dir, tmp_path):
    table = pq.read_table(root / "test.parquet")
    score(run_dir, str(root / "test.parquet"), tmp_path / "scores")
    export(run_dir, tmp_path / "servable")
    of_file = pq.read_table(tmp_path / "scores/test.parquet").column("click.logit").to_pylist()
    with open_run(run_dir) as opened:
        assert opened.predict(table).column("click.logit").to_pylist() == of_file
        shared = opened.rows("country", [None, "never seen"])
        assert shared.column("key")[0] == shared.column("key")[1]
    with open_servable(tmp_path / "servable", backend="torch") as servable:
        assert servable.predict(table).column("click.logit").to_pylist() == of_file
        rows = servable.predict(table.to_pylist()).column("click.logit").to_pylist()
        assert rows == of_file
        inputs = inputs_of(servable.features, servable.manifest.unsigned)
        assert {spec.name for spec in inputs} == {"x0", "history", "item", "country", "age", "price", "when", "user"}
        request = (tmp_path / "servable/request.json").read_bytes()
        asked = read_request(request, None, inputs, ()).table
        assert servable.predict(asked).column("click.logit").to_pylist() == of_file[:2]


def test_a_run_keeps_the_files_that_its_features_read(root, run_dir, tmp_path, capsys):
    """They may be moved away; a copy that is damaged is named."""
    moved = [root / "items.parquet", root / "country.parquet"]
    table = pq.read_table(root / "test.parquet")
    for path in moved:
        path.rename(path.with_suffix(".away"))
    try:
        with open_run(run_dir) as opened:
            opened.predict(table)
    finally:
        for path in moved:
            path.with_suffix(".away").rename(path)
    assert verify(run_dir) == 0
    copy = sorted((run_dir / "features").glob("*.parquet"))[0]
    content = copy.read_bytes()
    try:
        copy.write_bytes(content[:-1] + b"?")
        assert verify(run_dir) == 1
        assert f"{copy}: its checksum is wrong" in capsys.readouterr().out
        with pytest.raises(ValueError, match=r"the copy of .* that data.features names, is damaged or missing"):
            open_run(run_dir)
    finally:
        copy.write_bytes(content)


def test_a_run_never_goes_on_with_another_side_file(root, tmp_path):
    workflow = make(root, epochs=1)
    train(workflow, tmp_path / "run", serial=True, verbose=False).close()
    content = (root / "items.parquet").read_bytes()
    try:
        items = pq.read_table(root / "items.parquet")
        pq.write_table(items.set_column(1, "brand", pa.array(["other"] * 40)), root / "items.parquet")
        more = workflow.with_settings({"schedule.epochs": 2})
        with pytest.raises(ValueError, match=r"data.features: items.parquet has another content than when the run"):
            train(more, tmp_path / "run", serial=True, verbose=False)
    finally:
        (root / "items.parquet").write_bytes(content)


def one_path(rows, folder):
    """A table of random rows, also written as a Parquet file of three row groups."""
    rng = np.random.default_rng(11)

    def some_null(values, kind):
        return pa.array(values, kind, mask=rng.random(rows) < 0.1)

    table = pa.table({
        "click": rng.integers(0, 2, rows).astype(np.int8),
        "x0": some_null(rng.standard_normal(rows).astype(np.float32), pa.float32()),
        "price": some_null(rng.lognormal(0, 3, rows), pa.float64()),
        "age": some_null(rng.integers(0, 9, rows), pa.int32()),
        "user": some_null(rng.integers(0, 1 << 40, rows), pa.int64()),
        "item": some_null(rng.integers(0, 60, rows), pa.int64()),
        "country": some_null([f"c{n}" for n in rng.integers(0, 60, rows)], pa.string()),
        "history": pa.array([[]] * rows, pa.list_(pa.int64())),
    })  # fmt: skip
    table = with_times(table, 5)
    pq.write_table(table, folder / "train.parquet", row_group_size=max(1, rows // 3))
    return table


@pytest.mark.parametrize("rows", some([2_000, 1_000_000], 2_000))
def test_files_tables_and_requests_are_read_alike(root, run_dir, tmp_path, rows):
    table = one_path(rows, tmp_path)
    for name in ("items", "country", "item"):
        (tmp_path / f"{name}.parquet").write_bytes((root / f"{name}.parquet").read_bytes())
    data = make(tmp_path).data.model_copy(update={"train": ("train.parquet",)})
    columns = [column for column in columns_of(data) if column.setting in ("data.numbers", "data.categories")]
    with (opened := open_commit(run_dir, "last")).held:
        features = opened.features
    names = [column.name for column in columns]
    (path,) = resolve(data, "train", Description(features.inputs))
    with open_file(path) as file:
        stored = file.read_row_groups(range(file.metadata.num_row_groups), names)

    def read(given, *known):
        reader = TableReader(columns, features.kinds, layout_of(data, features.kinds), *known)
        for batch in reader.batches(given, 50_000, Outside("clip")):
            yield batch.keys_V.tobytes(), batch.numbers_NX.tobytes()

    expected = list(read(stored))
    assert list(read(table, data)) == expected
    inputs, bodies = inputs_of(features), []
    for begin in range(0, rows, 50_000):
        part = table.slice(begin, 50_000)
        bodies.append(request_of(part, inputs))
    asked = [read_request(body, None, inputs, ()).table for body in bodies]
    assert list(read(pa.concat_tables(asked), data, features.description)) == expected


def test_a_file_without_an_input_has_null_in_its_place(root, tmp_path):
    rewritten(root, tmp_path, lambda table: table)
    table = pq.read_table(root / "train-1.parquet").drop_columns(["age", "when"])
    pq.write_table(table, tmp_path / "train-1.parquet", row_group_size=8)
    with train(make(tmp_path, epochs=1), tmp_path / "run", serial=True, verbose=False) as opened:
        assert opened.result["examples"] == 90


@pytest.mark.parametrize("column", ["user", "item"])
def test_an_input_of_another_kind_than_in_training_is_refused(root, run_dir, column):
    table = pq.read_table(root / "test.parquet")
    with open_run(run_dir) as opened:
        scores = opened.predict(table)
        as_floats = with_columns(table, **{column: table.column(column).cast(pa.float64())})
        assert opened.predict(as_floats) == scores, "as pandas has integers of which some are missing"
        with pytest.raises(ValueError, match=rf"column '{column}'.* string"):
            opened.predict(with_columns(table, **{column: table.column(column).cast(pa.string())}))
        assert opened.predict(table.append_column("hour", table.column("age"))) == scores, "no input"


def test_a_servable_of_features_can_be_probed(run_dir, tmp_path):
    export(run_dir, tmp_path / "servable")
    with open_servable(tmp_path / "servable", backend="torch") as servable:
        model = ServedModel(servable)
        assert len(model.predict(model.example()).scores["click.logit"]) == 1


def request_of(table, inputs):
    tensors = []
    for spec in inputs:
        column = table.column(spec.name)
        values = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        if spec.is_list:
            lengths = {"name": f"{spec.name}.lengths", "datatype": "INT64", "shape": [len(values)]}
            tensors.append(lengths | {"data": [len(value) for value in values]})
            values = [one for value in values for one in value]
        tensors.append({"name": spec.name, "datatype": spec.datatype, "shape": [len(values)], "data": values})
    return json.dumps({"inputs": tensors}).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Bucket(column="age", name="age_bucket", quantiles=4), r"data.features\[0\] \(bucket\) has no edges; `pipe"),
        (Bucket(column="country", name="age_bucket", edges=(1.0,)), r"column 'country' has type string, expected int"),
        (Bucket(column="agee", name="age_bucket", edges=(1.0,)), r"'age_bucket'.* is made of 'agee', which is miss"),
        (Bucket(column="age", name="user", edges=(1.0,)), r"makes column 'user', which already exists"),
        (Cross(columns=("history", "user"), name="age_bucket"), r"column 'history' has type list<.*>, expected int"),
        (Cross(columns=("x0", "user"), name="age_bucket"), r"column 'x0' has type float.* keys of it with a Bucket"),
        (Calendar(column="when", take={"hour": "age_bucket"}, unit="s"), r"has type timestamp\[us, tz=UTC\], expected"),
        (Calendar(column="age", take={"hour": "age_bucket"}), r"column 'age' has type int32, which needs unit, or"),
        (Calendar(column="age", take={"hour": "age_bucket"}, form="%d.%m"), r"column 'age': .*correct the data, or"),
        (
            Lookup(column="country", file="items.parquet", key="id", take={"price": "age_bucket"}),
            r"column 'country' has type string, expected integers",
        ),
        (
            Lookup(column="item", file="nowhere.parquet", key="id", take={"price": "age_bucket"}),
            r"nowhere.parquet cannot be read .* relative to data.root",
        ),
        (
            Lookup(column="item", file=".", key="id", take={"price": "age_bucket"}),
            r"is a folder, and a feature reads one file; write its files as one, .*pq.write_table\(ds.dataset\(",
        ),
        (
            Lookup(column="item", file="items.parquet", key="brand", take={"price": "age_bucket"}),
            r"column 'brand' has 'b0' in more than one row",
        ),
    ],
)  # fmt: skip
def test_a_feature_that_does_not_fit_is_one_message(root, tmp_path, change, said):
    workflow = make(root)
    features = [change.model_dump(), *(f.model_dump() for f in FEATURES[1:4])]
    categories = [c.model_dump() for c in CATEGORIES if c.name != "cell"]
    changed = workflow.with_settings({"data.features": features, "data.categories": categories})
    with pytest.raises(Exception, match=said):
        train(changed, tmp_path / "run", serial=True, verbose=False)


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([{"kind": "cross", "columns": ["late", "user"], "name": "c"},
          {"kind": "bucket", "column": "age", "name": "late", "edges": [1.0]}], r"reads 'late', which no earlier"),
        ([{"kind": "bucket", "column": "click", "name": "b", "edges": [1.0]}], r"reads 'click', which is a label"),
        ([FEATURES[3].model_dump() | {"file": "s3://a:b@bucket/x.parquet"}], r"data.features"),
        ([{"kind": "calendar", "column": "when", "take": {"hour": "h"}, "zone": "Mars/Base"}], r"no time zone 'Mars/B"),
        ([{"kind": "bucket", "column": "age", "name": "b", "edges": [2.0, 1.0]}], r"expected .* in ascending order"),
        ([{"kind": "bucket", "column": "age", "name": "b"}], r"give one of edges, quantiles and squared_log"),
        ([{"kind": "rare", "column": "contry", "at_least": 2, "counts": "c"}], r"'contry', .*; did you mean 'country'"),
        ([FEATURES[0].model_dump()] * 2, r"makes column 'age_bucket', which data.features\[0\] does too"),
        ([FEATURES[5].model_dump()] * 2, r"several rules for rare values of 'country'; leave one"),
    ],
)  # fmt: skip
def test_features_that_contradict_are_refused_at_once(root, features, said):
    with pytest.raises(ValueError, match=said):
        make(root).with_settings({"data.features": features})


def test_counts_of_another_column_are_refused(root, tmp_path):
    rule = Rare(column="country", at_least=2, counts="item.parquet")
    workflow = make(root).with_settings({"data.features": [*(f.model_dump() for f in FEATURES[:5]), rule.model_dump()]})
    with pytest.raises(ValueError, match=r"its counts are those of 'item', expected those of 'country'"):
        train(workflow, tmp_path / "run", serial=True, verbose=False)


FOR_ITEMS = {COLUMNS: b'["item"]'}


@pytest.mark.parametrize(
    ("values", "counts", "metadata"),
    [
        ([1], [2], None),
        ([1], [2], {COLUMNS: b"["}),
        ([1], [2], {COLUMNS: b"[" * 5000}),
        ([1], [2], {COLUMNS: b'"items"'}),
        ([1], [2], {COLUMNS: b"7"}),
        ([1], [2], {COLUMNS: b"[7]"}),
        ([1], ["2"], FOR_ITEMS),
        ([1], [2.5], FOR_ITEMS),
        ([1], [None], FOR_ITEMS),
        ([None, 1], [2, 2], FOR_ITEMS),
        ([[1]], [2], FOR_ITEMS),
        ([1.5], [2], FOR_ITEMS),
    ],
)
def test_damaged_counts_are_one_message_with_the_file(tmp_path, values, counts, metadata):
    table = pa.table({"value": values, "count": counts})
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "item.parquet")
    rule = Rare(column="item", at_least=2, counts="item.parquet")
    with pytest.raises(ValueError, match=r"item.parquet: its counts are not of the form that `pipeline prepare` makes"):
        Derived([rule], tmp_path, Description()).rare({"item": "item"})


def test_a_workflow_of_features_is_the_same_from_its_json(root):
    workflow = make(root)
    assert type(workflow).model_validate_json(workflow.model_dump_json()) == workflow
    assert Path(workflow.data.root) == root
