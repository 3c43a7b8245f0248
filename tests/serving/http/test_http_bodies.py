"""Bodies: a table is read as it was sent, in JSON and binary data; what is not a table of the model is refused,
and the field is named."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples
from support.http.file_servables import COLUMNS, OUTPUTS, TABLE, Fake, scores_of
from support.http.oip import binary_request, json_request, to_bytes

from pipeline.serving.http.request import answer_post, parts_of, read_request
from pipeline.serving.http.tensors import DATATYPES
from pipeline.serving.served_model import InputSpec

ROOT = Path(__file__).parents[3]


def values_of(datatype, texts):
    if datatype == "BYTES":
        return texts
    if datatype == "BOOL":
        return st.booleans()
    if datatype.startswith("FP"):
        return st.floats(width=int(datatype[2:]), allow_nan=False, allow_infinity=False)
    limits = np.iinfo(DATATYPES[datatype].stored)
    return st.integers(int(limits.min), int(limits.max))


TEXTS = st.text()


@st.composite
def tables(draw, datatypes=tuple(DATATYPES), texts=TEXTS, text=None):
    """Inputs, and a table for them; `text` is the Arrow type of its texts."""
    rows = draw(st.integers(1, 5))
    inputs, columns = [], {}
    for n in range(draw(st.integers(1, 4))):
        datatype = draw(st.sampled_from(datatypes))
        spec = InputSpec(f"c{n}", datatype, draw(st.booleans()) and ("INT" in datatype or datatype == "BYTES"))
        each = st.none() | values_of(spec.datatype, texts)
        column = st.none() | st.lists(each, max_size=4) if spec.is_list else each
        found = text if text and spec.datatype == "BYTES" else DATATYPES[spec.datatype].arrow
        values = draw(st.lists(column, min_size=rows, max_size=rows))
        columns[spec.name] = pa.array(values, pa.list_(found) if spec.is_list else found)
        inputs.append(spec)
    return tuple(inputs), pa.table(columns)


def same(found, sent):
    assert found.schema.equals(sent.schema)
    # Bits, since -0.0 equals 0.0.
    assert repr(found.to_pydict()) == repr(sent.to_pydict())


@examples(12, 500)
@given(tables([name for name, kind in DATATYPES.items() if kind.json], text=pa.string()))
def test_a_table_in_json_is_read_as_it_was_sent(made):
    inputs, table = made
    same(read_request(json_request(table, inputs), None, inputs, OUTPUTS).table, table)


@examples(12, 500)
@given(tables(texts=st.binary()))
def test_a_table_in_binary_data_is_read_as_it_was_sent(made):
    inputs, table = made
    same(read_request(*binary_request(table, inputs), inputs, OUTPUTS).table, table)


def test_numbers_that_are_not_finite_pass_as_binary_data():
    inputs = (InputSpec("x", "FP64", False),)
    table = pa.table({"x": [math.nan, math.inf, -math.inf]})
    same(read_request(*binary_request(table, inputs), inputs, OUTPUTS).table, table)


def test_the_same_rows_get_the_same_scores_in_every_body():
    binary, length = binary_request(TABLE, COLUMNS, parameters={"binary_data_output": True})
    posts = (json_request(TABLE, COLUMNS), None), (binary, length)
    by_json, by_binary = (answer_post(Fake(), *post, lambda timeout: None) for post in posts)
    expected = scores_of("1", TABLE)
    shown = json.loads(by_json.body)
    head = int(by_binary.headers["Inference-Header-Content-Length"])
    data = np.frombuffer(by_binary.body[head:], "<f4").reshape(2, 3)
    for n, name in enumerate(OUTPUTS):
        assert np.array(shown["outputs"][n]["data"], np.float32).tobytes() == expected[name].tobytes()
        assert data[n].tobytes() == expected[name].tobytes()
    described = json.loads(by_binary.body[:head])
    assert [output.pop("parameters") for output in described["outputs"]] == [{"binary_data_size": 12}] * 2
    assert all(output.pop("data") for output in shown["outputs"])
    assert described.pop("parameters") == {"binary_data_output": True} | shown.pop("parameters")
    assert described == shown


def refused(said, body, length=None, inputs=COLUMNS):
    with pytest.raises(ValueError, match=re.escape(said)):
        read_request(body, length, inputs, OUTPUTS)


def tensor(name="x", datatype="INT64", shape=(2,), **more):
    return {"name": name, "datatype": datatype, "shape": list(shape)} | (more or {"data": [1, 2]})


ONE = (InputSpec("x", "INT64", False),)
LIST = (InputSpec("x", "INT64", True),)
FLOAT = (InputSpec("x", "FP32", False),)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "content: Invalid JSON: EOF"),
        (b"\xff", "content: Invalid JSON"),
        (b"[]", "content: Input should be an object"),
        (b"[" * 200_000, "content: Invalid JSON: recursion limit exceeded"),
        (b'{"inputs": [' + b"9" * 5000 + b"]}", "content: Invalid JSON: number out of range"),
        (b'{"inputs": [], "parameters": {"a": 1e999}}', "parameters.a"),
        ({}, "inputs: Field required"),
        ({"inputs": []}, "input 'x' is missing"),
        ({"inputs": [{}]}, "inputs.0.name: Field required"),
        ({"inputs": [tensor(), tensor()]}, "inputs.1.name: input 'x' is there twice"),
        ({"inputs": [tensor(), tensor("y")]}, "input 'y': the model has no such input; it has x"),
        ({"inputs": [tensor(datatype="INT65")]}, "input 'x': datatype 'INT65' is not one of"),
        ({"inputs": [tensor(datatype="FP64", data=[1.0, 2.0])]},
         "input 'x': got FP64, expected integers (such as INT64)"),
        ({"inputs": [tensor(datatype="BYTES", data=["a", "b"])]}, "input 'x': got BYTES, expected integers"),
        ({"inputs": [tensor(datatype="FP16", data=[1.0, 2.0])]}, "input 'x': JSON has no FP16"),
        ({"inputs": [tensor(shape=())]}, "input 'x': shape [], expected [values] or [values, 1]"),
        ({"inputs": [tensor(shape=(2, 2))]}, "input 'x': shape [2, 2]"),
        ({"inputs": [tensor(shape=(-1,))]}, "inputs.0.shape.0: Input should be greater than or equal to 0"),
        ({"inputs": [tensor(shape=(2.0,))]}, "inputs.0.shape.0: Input should be a valid integer"),
        ({"inputs": [tensor(shape=(10**300,))]}, "inputs.0.shape.0: Input should be less than"),
        ({"inputs": [tensor(shape=(3,))]}, "input 'x': 2 values in data, expected 3"),
        ({"inputs": [tensor(parameters={})]}, "input 'x': 0 values in data, expected 2"),
        ({"inputs": [tensor(shape=(2, 1), data=[[1], 2])]}, "input 'x': data is not of shape [2, 1]"),
        ({"inputs": [tensor(data=[[1], [2]])]}, "input 'x', element 0: expected an integer or null for INT64, got [1]"),
        ({"inputs": [tensor(data=[1, 1.0])]}, "input 'x', element 1: expected an integer or null for INT64, got 1.0"),
        ({"inputs": [tensor(data=[1, True])]}, "input 'x', element 1: expected an integer or null for INT64, got True"),
        ({"inputs": [tensor(data=[None, 2**63])]},
         "fit INT64: Python int too large to convert to C long; integers from"),
        ({"inputs": [tensor(data=[1, 10**4000])]}, "input 'x': a value of its data does not fit INT64"),
        ({"inputs": [tensor(datatype="UINT64", data=[1, -1])]}, "input 'x': a value of its data does not fit UINT64"),
        ({"inputs": [tensor(datatype="INT8", data=[-128, 128])]}, "fit INT8: Value 128 too large"),
        ({"inputs": [tensor(datatype="FP32", data=[1, 10**400])]}, "input 'x': a value of its data does not fit FP32"),
        (b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["\\ud800"]}]}',
         "content: Invalid JSON"),
        ({"inputs": [tensor(shape=(0,), data=[])]}, "input 'x': no rows"),
        ({"inputs": [tensor()], "id": 1}, "id: Input should be a valid string"),
        ({"inputs": [tensor()], "parameters": {"a": {}}}, "parameters.a"),
        ({"inputs": [tensor()], "parameters": {"timeout": -1}}, "parameters.timeout: -1, expected microseconds"),
        ({"inputs": [tensor()], "parameters": {"timeout": 10**400}}, "parameters.timeout: an integer of 1329 bits"),
        ({"inputs": [tensor()], "parameters": {"timeout": "1"}}, "parameters.timeout: got '1', expected int"),
        ({"inputs": [tensor()], "parameters": {"binary_data_output": 1}}, "binary_data_output: got 1, expected bool"),
        ({"inputs": [tensor()], "outputs": [{"name": "z"}]},
         "outputs.0.name: 'z' is not one of the outputs click.logit"),
        ({"inputs": [tensor()], "outputs": [{"name": OUTPUTS[1]}] * 2}, "outputs.1.name: 'click.probability' is asked"),
        ({"inputs": [tensor()], "outputs": [{"name": OUTPUTS[0], "parameters": {"classification": 2}}]},
         "outputs.0: parameters.classification belongs to an extension"),
        ({"inputs": [tensor(parameters={"shared_memory_region": "r"})]},
         "input 'x': parameters.shared_memory_region belongs to an extension"),
    ],
)  # fmt: skip
def test_bad_json_is_refused_and_its_field_named(body, said):
    refused(said, body if isinstance(body, bytes) else json.dumps(body).encode(), inputs=ONE)


@pytest.mark.parametrize("value", ["1e999", "-1e39"])
def test_a_number_too_large_for_its_datatype_is_infinite(value):
    """JSON has the result of the same number in binary data."""
    body = f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": [2], "data": [null, {value}]}}]}}'
    expected = [None, -math.inf if value.startswith("-") else math.inf]
    assert read_request(body.encode(), None, FLOAT, OUTPUTS).table["x"].to_pylist() == expected


def test_an_integer_is_a_number():
    body = json.dumps({"inputs": [tensor(datatype="FP32", data=[2**24 + 1, 0.5])]}).encode()
    assert read_request(body, None, FLOAT, OUTPUTS).table["x"].to_pylist() == [2**24, 0.5]
    for datatype in ("INT8", "BOOL"):
        data = [True, False] if datatype == "BOOL" else [1, 0]
        read_request(json.dumps({"inputs": [tensor(datatype=datatype, data=data)]}).encode(), None, FLOAT, OUTPUTS)


def test_the_request_in_the_guide_has_a_list_for_each_row():
    body = re.findall(r"^```json\n(.*?)^```$", (ROOT / "docs" / "use.md").read_text(), re.M | re.S)[0]
    inputs = (InputSpec("user_id", "INT64", False), InputSpec("watched", "INT64", True))
    assert read_request(body.encode(), None, inputs, OUTPUTS).table.to_pydict() == {
        "user_id": [7, 8], "watched": [[1, 9, 20], [23]],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ([tensor()], "input 'x.lengths' is missing: the length of each row's list"),
        ([tensor(data=[None, [3]])], "input 'x', element 1: expected an integer or null for INT64, got [3]"),
        ([tensor(shape=(2, 1), data=[[1, 2], [3]])], "input 'x': data is not of shape [2, 1]"),
        ([tensor(), tensor("x.lengths", data=[1, 2])], "input 'x.lengths': the lengths add up to 3, but there are 2"),
        ([tensor(), tensor("x.lengths", data=[3, -1])], "input 'x.lengths': length 3 of list 0"),
        ([tensor(), tensor("x.lengths", data=[2**62, 2**62])],
         "input 'x.lengths': length 4611686018427387904 of list 0"),
        ([tensor(), tensor("x.lengths", "UINT64", data=[2, 2**64 - 1])], "length 18446744073709551615 of list 1"),
        ([tensor(), tensor("x.lengths", "FP32", data=[1.0, 1.0])], "input 'x.lengths': got FP32, expected integers"),
        ([tensor(), tensor("x.lengths", "BYTES", data=["", ""])], "input 'x.lengths': got BYTES, expected integers"),
        ([tensor(), tensor("x.lengths"), tensor("x.lengths.null", "BOOL", data=[True, None])],
         "input 'x.lengths.null'"),
        ([tensor(), tensor("x.lengths"), tensor("x.null", "BOOL", (1,), data=[True])], "input 'x.null': expected 2"),
        ([tensor(), tensor("x.lengths"), tensor("x.null", data=[0, 1])], "input 'x.null': expected 2 values true or"),
    ],
)  # fmt: skip
def test_lengths_and_masks_that_do_not_fit_are_refused(tensors, said):
    refused(said, json.dumps({"inputs": tensors}).encode(), inputs=LIST)


def test_masks_make_nulls_of_json_values_too():
    tensors = [tensor(data=[1, None]), tensor("x.lengths", data=[2, 0]), tensor("x.null", "BOOL", data=[True, False]),
               tensor("x.lengths.null", "BOOL", data=[False, True])]  # fmt: skip
    body = json.dumps({"inputs": tensors}).encode()
    assert read_request(body, None, LIST, OUTPUTS).table["x"].to_pylist() == [[None, None], None]


def test_columns_of_different_lengths_are_refused():
    inputs = (*ONE, InputSpec("y", "INT64", False))
    body = json.dumps({"inputs": [tensor(), tensor("y", shape=(1,), data=[1])]}).encode()
    refused("input 'y' has 1 rows, but 'x' has 2", body, inputs=inputs)


@pytest.mark.parametrize(
    ("size", "data", "datatype", "said"),
    [
        (16, 15, "INT64", "input 'x': binary_data_size 16, but 15 bytes are left"),
        (16, 17, "INT64", "the body has 1 bytes too many after the binary data"),
        (15, 15, "INT64", "input 'x': 15 bytes of binary data, expected 16 for 2 elements of INT64"),
        (-1, 0, "INT64", "input 'x': binary_data_size -1"),
        (16.0, 16, "INT64", "input 'x': parameters.binary_data_size: got 16.0, expected int"),
        (7, 7, "BYTES", "input 'x': 7 bytes of binary data, expected 4 and more for each of 2"),
        (9, 9, "BYTES", "input 'x': the binary data continues after 2 texts"),
        (2, b"\1\2", "BOOL", "input 'x': BOOL data has a byte 2"),
        (8, b"\1\0\0\0\0\0\0\0", "BYTES", "input 'x': text 0 is longer than"),
    ],
)
def test_binary_data_that_does_not_fit_is_refused(size, data, datatype, said):
    text = json.dumps({"inputs": [tensor(datatype=datatype, parameters={"binary_data_size": size})]}).encode()
    inputs = (InputSpec("x", datatype, False),)
    refused(said, text + (bytes(data) if isinstance(data, int) else data), len(text), inputs)


def test_data_in_json_and_as_binary_is_refused():
    text = json.dumps({"inputs": [tensor(data=[1, 2], parameters={"binary_data_size": 16})]}).encode()
    refused("input 'x': binary_data_size 16; give data, or a size", text + bytes(16), len(text), ONE)
    refused("Inference-Header-Content-Length: 900", b"{}", 900, ONE)


@pytest.mark.parametrize(("inputs", "name"), [(LIST, "x.lengths"), (LIST, "x.lengths.null"), (ONE, "x.null")])
def test_a_column_named_as_a_tensor_of_another_cannot_be_served(inputs, name):
    with pytest.raises(ValueError, match=f"columns 'x' and '{name}' would both have a tensor '{name}'"):
        parts_of((*inputs, InputSpec(name, "INT64", False)))
    assert f"{name}.null" in parts_of((InputSpec(name, "INT64", False),))


def test_a_score_that_is_not_finite_is_null_in_json():
    class Wild(Fake):
        def predict(self, table):
            answer = super().predict(table)
            answer.scores[OUTPUTS[0]][1] = np.inf
            answer.scores[OUTPUTS[1]][0] = np.nan
            return answer

    inputs = (InputSpec("x", "BOOL", False),)
    table = pa.table({"x": [True, False]})

    def answered(body):
        return answer_post(Wild(inputs=inputs), body, None, lambda timeout: None).body

    outputs = json.loads(answered(json_request(table, inputs)))["outputs"]
    assert [[value is None for value in output["data"]] for output in outputs] == [[False, True], [True, False]]
    binary = json_request(table, inputs, parameters={"binary_data_output": True})
    assert to_bytes("FP32", [math.inf]) in answered(binary)
