"""The workflow that is left: of every role, in the order of the columns, with transforms that the numbers allow."""

import pytest
from support.faults.hostile_names import NAMES

from pipeline.prepare.draft import stub_text
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
    (tmp_path / "workflow.py").write_text(stub_text(summary(columns), "my clicks"))
    return load(tmp_path / "workflow.py")


def test_every_column_keeps_its_role_in_the_workflow(tmp_path):
    data = loaded(tmp_path, COLUMNS).data
    assert (data.labels, [c.name for c in data.categories]) == (("click",), ['na"me'])
    assert (data.train, data.validation, data.test) == (("train",), (), ("test",))
    assert data.root == tmp_path
    assert data.numbers == (
        Number(name="age", log1p=True),
        Number(name="change"),
        Number(name="count", fill=-3.0, shift=3.0, log1p=True),
        Number(name="empty", log1p=True),
    )


def test_the_workflow_has_the_name_of_its_folder(tmp_path):
    assert loaded(tmp_path, COLUMNS).name == "my_clicks"


def test_memory_and_disk_are_left_to_the_run(tmp_path):
    assert loaded(tmp_path, COLUMNS).storage == Storage()


def test_a_workflow_without_numbers_can_be_loaded(tmp_path):
    columns = {name: column for name, column in COLUMNS.items() if column["role"] != "number"}
    assert loaded(tmp_path, columns).data.numbers == ()


@pytest.mark.parametrize("name", [*NAMES, "h\rimport os\r", '"\\', "\u2028\x85\x0c"])
def test_a_name_is_a_literal_of_the_file_whatever_it_holds(tmp_path, name):
    columns = {name: {"role": "category", "type": "string"}}
    assert loaded(tmp_path, COLUMNS | columns).data.categories[-1].name == name
