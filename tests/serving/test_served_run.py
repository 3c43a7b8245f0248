"""From training to an answer over HTTP: whole evaluation batches are answered with the bits of the evaluation."""

import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from test_scoring import command
from test_servable import export
from test_stop import ROOT

triton = pytest.importorskip("tritonclient.http")

GUIDE = ROOT / "docs" / "use.md"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
"""Environment of a process which finds this package from any folder, and no module of the tests."""


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("servables")
    assert export(trained, folder / "one", "--publish", folder) == 0
    return folder


@contextmanager
def server(folder, *arguments, cwd=ROOT):
    """Address of a server in a separate process."""
    argv = command("pipeline", "serve", folder, "--port", "0", *arguments)
    process = subprocess.Popen(argv, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving small ("), line
        yield line.split("http://")[1].strip(), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def served(folder):
    """Address of a server with torch."""
    with server(folder, "--backend", "torch") as (address, _):
        yield address


def inputs_of(table):
    """Tensors of a table's columns: nulls and lists as the protocol of the server has them."""
    found = []

    def add(name, values, datatype):
        tensor = triton.InferInput(name, [len(values)], datatype)
        tensor.set_data_from_numpy(values)
        found.append(tensor)

    for name in table.column_names:
        column = table.column(name).combine_chunks()
        nulls = np.array(column.is_null())
        if name in ("click", "bought", "importance"):
            continue
        if name in ("history", "tags"):
            add(f"{name}.lengths", np.array([len(one or ()) for one in column.to_pylist()], np.int64), "INT64")
            add(name, np.array([value for one in column.to_pylist() for value in one or ()], np.int64), "INT64")
        elif name == "country":
            add(name, np.array([(one or "").encode() for one in column.to_pylist()], np.object_), "BYTES")
        else:
            kind = "INT64" if name in ("item", "user", "age") else "FP32"
            values = [0 if one is None else one for one in column.to_pylist()]
            add(name, np.array(values, np.int64 if kind == "INT64" else np.float32), kind)
        if nulls.any():
            add(f"{name}.lengths.null" if name in ("history", "tags") else f"{name}.null", nulls, "BOOL")
    return found


def logits_of(address, trained):
    """Logits of the test split, asked for in whole batches."""
    size, table = trained.workflow.schedule.batch_size, trained.test
    with triton.InferenceServerClient(address) as client:
        answers = [client.infer("small", inputs_of(table.slice(at, size))) for at in range(0, len(table), size)]
    return np.concatenate([answer.as_numpy("click.logit") for answer in answers])


def test_whole_batches_are_answered_with_the_evaluations_bits(trained, served):
    assert (logits_of(served, trained).view(np.uint32) == trained.logits_NT[:, 0].view(np.uint32)).all()


@pytest.mark.prove
def test_whole_batches_are_answered_with_the_logits_by_onnx(trained, folder):
    with server(folder, "--backend", "onnx") as (address, _):
        assert np.abs(logits_of(address, trained) - trained.logits_NT[:, 0]).max() < 1e-5


def test_unknown_keys_are_counted_and_the_example_is_answered(trained, folder, served):
    """The example is sent by the client that the user guide shows."""
    table = trained.test.slice(0, 2)
    at = table.schema.names.index("item")
    table = table.set_column(at, "item", pa.array([10**15, 10**15 + 1]))
    (client_of_guide,) = re.findall(r"```python\n(import json\nimport urllib.*?)```", GUIDE.read_text(), re.DOTALL)
    exec(client_of_guide, guide := {})
    with triton.InferenceServerClient(served) as client:
        parameters = client.infer("small", inputs_of(table)).get_response()["parameters"]
        url = f"http://{served}/v2/models/small/infer"
        scores = guide["ask"](url, (folder / "one" / "request.json").read_bytes())
    assert parameters["unknown_keys.item"] == 2
    for output in json.loads((folder / "one" / "response.json").read_text())["outputs"]:
        assert np.allclose(scores[output["name"]], output["data"], rtol=0, atol=1e-5)
