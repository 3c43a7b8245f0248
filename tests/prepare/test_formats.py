"""What a user says of his columns is understood, or refused with what is wrong."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.features.derived import inputs_of
from pipeline.prepare import formats
from pipeline.workflow import Workflow
from workflows import avazu, criteo

COLUMNS = ["click:label", "age:number:int32", "city:category", "note:skip"]


@pytest.mark.parametrize(
    ("format", "workflow"), [(formats.criteo(), criteo.workflow), (formats.avazu(), avazu.workflow)]
)
def test_a_format_has_every_column_that_its_workflow_reads(format, workflow: Workflow):
    roles = {f.name: f.role for f in format.fields}
    assert [name for name, role in roles.items() if role == "label"] == list(workflow.data.labels)
    names = inputs_of(workflow.data.features, [c.name for c in workflow.data.categories])
    assert {"number"} >= {roles[name] for name in names} - {"category", "time"}
    assert {name for name, role in roles.items() if role == "number"} <= {*names}
    assert format.schema.names == [f.name for f in format.fields if f.role != "skip"]


def test_a_schema_file_means_the_same_as_columns_given_by_hand(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({"columns": COLUMNS, "delimiter": "\t", "header": False}))
    toml = f'columns = {json.dumps(COLUMNS)}\ndelimiter = "\\t"\nheader = false\n'
    (tmp_path / "s.toml").write_text(toml)
    found = formats.csv(tmp_path / "s.json")
    assert found == formats.csv(tmp_path / "s.toml")
    assert (found.delimiter, found.header, found.quoting) == ("\t", False, True)
    assert found.fields == formats.csv(COLUMNS).fields
    assert found.schema == pa.schema([("click", pa.int8()), ("age", pa.int32()), ("city", pa.string())])


SCHEMAS = {
    '{"columns": ["click"]}': "expected NAME:ROLE",
    '{"columns": ["click:labels"]}': "a role of label, number",
    '{"columns": ["click:label:float32"]}': "a label has type int8, or the two values that become 0 and 1",
    '{"columns": ["a:number:string"]}': "a number has type",
    '{"columns": ["a:category:int32:many"]}': "expected NAME:ROLE",
    '{"columns": ["click:label"], "sep": ","}': "sep",
    '{"columns": ["click:label"], "delimiter": "||"}': "one character",
    '{"columns": "click:label"}': "columns",
    "{": "is not a schema of columns",
    "1": "Input should be an object",
    "columns = 2020-01-01": "columns",
}
"""Texts of JSON, or of TOML, and a part of the reason."""


@pytest.mark.parametrize("text", SCHEMAS)
def test_an_invalid_schema_is_refused_with_its_reason(tmp_path, text):
    (path := tmp_path / ("s.toml" if text.startswith("columns") else "s.json")).write_text(text)
    with pytest.raises(ValueError, match=rf"{path.name} is not a schema of columns") as caught:
        formats.csv(path)
    assert SCHEMAS[text] in str(caught.value)


def test_parquet_columns_get_their_role_and_a_matching_type(tmp_path):
    table = pa.table({
        "click": pa.array([True]), "i1": pa.array([1.0]), "i2": pa.array([1], pa.int16()), "c1": pa.array([5]),
        "c2": pa.array(["a"]).dictionary_encode(), "tags": pa.array([[1]]), "when": pa.array([1]),
        "price [$]": pa.array([1.0]), "other": pa.array([1]),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    path, roles = tmp_path / "a.parquet", ["i*:number", "c*:category", "tags:category", "when:time", "price [$]:number"]
    found = formats.parquet_format(["click:label", *roles], [path])
    types = {"click": pa.int8(), "i1": pa.float32(), "i2": pa.int16(), "c1": pa.int64(), "c2": pa.string(),
             "tags": pa.list_(pa.int64()), "when": pa.int64(), "price [$]": pa.float32()}  # fmt: skip
    assert found.schema == pa.schema(types)
