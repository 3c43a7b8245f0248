"""The workflow that is left: of every role, in the order of the columns, with transforms that the numbers allow."""

import pytest
from support.faults.hostile_names import NAMES

from pipeline.prepare.draft import draft_of, num_buckets_of, workflow_name, workflow_text
from pipeline.prepare.statistics import data_of_numbers
from pipeline.run import load
from pipeline.workflow import Number, Storage

COLUMNS = {
    "age": {"role": "number", "type": "int32"},
    "change": {"role": "number", "type": "float"},
    "click": {"role": "label", "type": "int8"},
    "hour": {"role": "time", "type": "int32"},
    'na"me': {"role": "category", "type": "string"},
}


def summary(columns):
    rows = {"train": 90, "validation": 0, "test": 10}
    splits = {s: {"rows": n, "positive_rate": {"click": 0.25} if n else {}} for s, n in rows.items()}
    return {"format": "csv", "columns": columns, "splits": splits}


def loaded(tmp_path, columns):
    draft = draft_of(summary(columns), workflow_name("my clicks"), "Path(__file__).parent")
    (tmp_path / "workflow.py").write_text(workflow_text(draft))
    return load(tmp_path / "workflow.py")


def test_every_column_keeps_its_role_in_the_workflow(tmp_path):
    workflow = loaded(tmp_path, COLUMNS)
    # Memory and disk are left to the run.
    assert (workflow.name, workflow.storage) == ("my_clicks", Storage())
    data = workflow.data
    names = [category.name for category in data.categories]
    assert (data.labels, names) == (("click",), ['na"me', "age_bucket", "change_bucket"])
    assert (data.train, data.validation, data.test) == (("train",), (), ("test",))
    assert data.root == tmp_path
    assert data.numbers == (Number(name="age_scaled"), Number(name="change_scaled"))
    assert [(f.column, f.name) for f in data.features] == [
        ("age", "age_scaled"), ("change", "change_scaled"), ("age", "age_bucket"), ("change", "change_bucket"),
    ]  # fmt: skip
    # Statistics are computed for the features that the file has.
    assert data_of_numbers(draft_of(summary(COLUMNS), "clicks", ""), tmp_path).features == data.features


@pytest.mark.parametrize(
    ("rows", "is_linear", "buckets"), [(100, False, 32), (20_000, False, 50), (10**9, False, 128), (10**9, True, 32)]
)
def test_a_deep_model_has_more_buckets_the_more_rows(rows, is_linear, buckets):
    assert num_buckets_of(rows, is_linear) == buckets


def test_made_columns_have_names_that_no_file_has(tmp_path):
    data = loaded(tmp_path, COLUMNS | {"age_bucket": {"role": "category", "type": "string"}}).data
    names = [category.name for category in data.categories]
    assert names == ['na"me', "age_bucket", "age__bucket", "change__bucket"]


@pytest.mark.parametrize(
    ("rates", "bias"),
    [
        ({"click": 0.25}, -1.1),
        ({"click": 0.002, "buy": 0.5}, {"click": -6.21, "buy": 0.0}),
        ({"click": 1.0}, 0.0),
        ({}, 0.0),
    ],
)
def test_training_begins_at_the_positive_rate(tmp_path, rates, bias):
    labels = {name: {"role": "label", "type": "int8"} for name in rates or ["click"]}
    of_rates = summary({name: column for name, column in COLUMNS.items() if column["role"] == "category"} | labels)
    of_rates["splits"]["train"]["positive_rate"] = rates
    draft = draft_of(of_rates, "rates", "Path(__file__).parent")
    (tmp_path / "workflow.py").write_text(workflow_text(draft))
    assert load(tmp_path / "workflow.py").model.initial_bias == bias


def test_a_workflow_without_numbers_can_be_loaded(tmp_path):
    columns = {name: column for name, column in COLUMNS.items() if column["role"] != "number"}
    assert loaded(tmp_path, columns).data.numbers == ()


@pytest.mark.parametrize("name", [*NAMES, "h\rimport os\r", '"\\', "\u2028\x85\x0c"])
def test_a_name_is_a_literal_of_the_file_whatever_it_holds(tmp_path, name):
    columns, as_number = ({name: {"role": role, "type": "int32"}} for role in ("category", "number"))
    assert loaded(tmp_path, COLUMNS | columns).data.categories[1].name == name
    assert f"{name}_scaled" in [f.name for f in loaded(tmp_path, COLUMNS | as_number).data.features]
