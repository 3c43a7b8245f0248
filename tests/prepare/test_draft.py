"""The workflow that is left: of every role, in the order of the columns, with transforms that the numbers allow."""

import pytest
from support.faults.hostile_names import NAMES

from pipeline.prepare.draft import draft_of, workflow_name, workflow_text
from pipeline.run import load
from pipeline.workflow import Number, Storage

COLUMNS = {
    "age": {"role": "number", "type": "int32", "least": 18, "greatest": 90},
    "change": {"role": "number", "type": "float", "least": -0.5, "greatest": 9.0},
    "click": {"role": "label", "type": "int8"},
    "count": {"role": "number", "type": "int32", "least": -3, "greatest": 7},
    "empty": {"role": "number", "type": "float"},
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
    assert (data.labels, [c.name for c in data.categories]) == (("click",), ['na"me'])
    assert (data.train, data.validation, data.test) == (("train",), (), ("test",))
    assert data.root == tmp_path
    assert data.numbers == (
        Number(name="age", log1p=True),
        Number(name="change"),
        Number(name="count", fill=-3.0, shift=3.0, log1p=True),
        Number(name="empty", log1p=True),
    )


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
    columns = {name: {"role": "category", "type": "string"}}
    assert loaded(tmp_path, COLUMNS | columns).data.categories[-1].name == name
