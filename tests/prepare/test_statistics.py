"""`pipeline prepare statistics`: what features need of the training data is what plain definitions find."""

import json
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow

from pipeline.api import Bucket, Rare, Standardize
from pipeline.data.files import derived_of
from pipeline.prepare.statistics import quantile_edges, statistics_command, write_statistics
from pipeline.workflow import Category, Data, Number

FEATURES = (
    Bucket(column="age", name="age_bucket", quantiles=3),
    Standardize(column="price", name="scaled"),
    Bucket(column="scaled", name="price_bucket", quantiles=4),
    Rare(column="country", at_least=2, counts="country.parquet"),
    Rare(column="tags", at_least=2, counts="numbers.parquet"),
    Rare(column="age_bucket", at_least=2, counts="numbers.parquet"),
)
CATEGORIES = tuple(Category(name=name) for name in ("country", "tags", "age_bucket", "price_bucket"))


@pytest.fixture
def workflow(data_root, tmp_path):
    for path in data_root.glob("*.parquet"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    features = [feature.model_dump() for feature in FEATURES]
    return make_workflow(tmp_path, categories=CATEGORIES).with_settings({
        "data.numbers": [Number(name="scaled").model_dump()], "data.statistics": "features.json",
        "data.features": features,
    })  # fmt: skip


def test_statistics_are_those_of_the_training_data(workflow, tmp_path):
    lines = list(write_statistics(workflow.data))
    table = pa.concat_tables([pq.read_table(path) for path in sorted(tmp_path.glob("train*.parquet"))])
    found = json.loads((tmp_path / "features.json").read_text())
    price = table.column("price").drop_null().to_numpy().astype(np.float64)
    assert found["scaled"]["mean"] == pytest.approx(price.mean(), rel=1e-12)
    assert found["scaled"]["std"] == pytest.approx(price.std(), rel=1e-12)
    ages = table.column("age").drop_null().to_numpy()
    in_buckets = np.bincount(np.searchsorted(found["age_bucket"]["edges"], ages, side="right"))
    assert len(in_buckets) == 3
    assert in_buckets.min() > len(ages) / 5
    counts = {row["value"]: row["count"] for row in pq.read_table(tmp_path / "country.parquet").to_pylist()}
    assert counts == Counter(table.column("country").drop_null().to_pylist())
    tags = [tag for tags in table.column("tags").drop_null().to_pylist() for tag in tags]
    both = Counter(tags) + Counter(np.searchsorted(found["age_bucket"]["edges"], ages, side="right").tolist())
    assert {row["value"]: row["count"] for row in pq.read_table(tmp_path / "numbers.parquet").to_pylist()} == both
    often = sum(count >= 2 for count in counts.values())
    assert f"country: {len(counts)} values, {often} of them 2 times or more: {tmp_path / 'country.parquet'}" in lines


def test_a_workflow_takes_its_statistics_from_the_file(workflow, tmp_path):
    assert [f.lacks for f in workflow.data.features[:3]] == ["edges", "mean and std", "edges"]
    list(write_statistics(workflow.data))
    found = workflow.with_settings({})
    assert not any(feature.lacks for feature in found.data.features)
    list(write_statistics(found.data))
    assert workflow.with_settings({}) == found, "statistics of features that have some are computed as before"


DAMAGED = {
    "no object": ("[1, 2]", ""),
    "empty": ("", ""),
    "deep": ("[" * 5000, "recursion limit"),
    "a number": ('{"age_bucket": 3}', "'age_bucket' has 3, expected edges"),
    "another field": ('{"age_bucket": {"edges": [1.0], "column": "price"}}', "'age_bucket' has .*, expected edges"),
    "half": ('{"scaled": {"mean": 1.0}}', "'scaled' has .*, expected mean and std"),
    "text": ('{"scaled": {"mean": "a", "std": 1.0}}', "Standardize.mean: expected a number"),
}


@pytest.mark.parametrize(("content", "said"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_statistics_are_one_message_with_the_file(workflow, tmp_path, content, said):
    (tmp_path / "features.json").write_text(content)
    named = r"features.json, which data.statistics names, is not as `pipeline prepare statistics` writes it \(.*"
    with pytest.raises(ValueError, match=named + said):
        workflow.with_settings({})


def test_a_missing_file_of_statistics_is_named(workflow, tmp_path):
    said = re.escape(f"has no edges: {tmp_path / 'features.json'}, which data.statistic")
    with pytest.raises(ValueError, match=said):
        derived_of(workflow.data)


def test_what_the_user_gave_is_kept(workflow, tmp_path):
    given = Standardize(column="price", name="scaled", mean=20.0, std=20.0)
    features = [given.model_dump(), Bucket(column="scaled", name="price_bucket", quantiles=4).model_dump()]
    categories = [{"name": "price_bucket"}]
    own = workflow.with_settings({"data.features": features, "data.categories": categories})
    list(write_statistics(own.data))
    found = json.loads((tmp_path / "features.json").read_text())
    assert found.keys() == {"price_bucket"}
    assert max(found["price_bucket"]["edges"]) < 0, "of the scale that was given"


def test_statistics_of_other_data_are_read_again(workflow, tmp_path):
    list(write_statistics(workflow.data))
    found = workflow.with_settings({})
    (tmp_path / "other").mkdir()
    other = found.with_settings({"data.root": tmp_path / "other"})
    assert [feature.lacks for feature in other.data.features[:3]] == ["edges", "mean and std", "edges"]
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_the_command_writes_the_files_of_a_workflow(workflow, tmp_path, capsys):
    path = tmp_path / "workflow.json"
    path.write_text(workflow.model_dump_json())
    assert statistics_command([str(path)]) == 0
    assert f"written to {tmp_path / 'features.json'}" in capsys.readouterr().out
    for path in tmp_path.glob("train*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["price"]), path)
    assert statistics_command([str(tmp_path / "workflow.json")]) == 2
    assert "has no column 'price'; it has click" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "num", "edges"),
    [
        (range(100), 4, [25, 50, 75]),
        ([0] * 60 + list(range(1, 41)), 4, [1, 15, 28]),
        ([5] * 60 + list(range(40)), 3, [5, 6, 20]),
        ([1, 1, 1, 2], 8, [2]),
        ([3, 3], 4, []),
    ],
)
def test_quantiles_set_the_most_frequent_value_apart(values, num, edges):
    found = quantile_edges(np.array(values, np.float64), num)
    assert found == sorted(set(found))
    assert found == pytest.approx(edges, abs=1)


@pytest.mark.parametrize("missing", [-0.1, -1.0, 1 / 3])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_edges_are_those_of_values_that_are_not_missing(tmp_path, kind, missing):
    values = pa.array([*[missing] * 60, *range(1, 41)], pa.float64()).cast(kind, safe=False)
    pq.write_table(pa.table({"x": values, "click": [0, 1] * 50}), tmp_path / "a.parquet")
    bucket = Bucket(column="x", name="b", quantiles=4, missing=missing)
    data = {"labels": ("click",), "features": (bucket,), "categories": (Category(name="b"),)}
    list(write_statistics(Data(root=tmp_path, train=("a.parquet",), statistics="s.json", **data)))
    edges = quantile_edges(np.arange(1.0, 41), 4)
    assert json.loads((tmp_path / "s.json").read_text()) == {"b": {"edges": edges}}
