"""A run opened in Python and a servable of it have the scores of its evaluation, in float32 with torch to the bit."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import NARROW, make_workflow, write_data
from support.data.parquet_files import with_columns
from support.data.row_files import flip
from support.depth import some
from support.http.oip import json_request
from support.http.server import running
from support.oracle.models import MODELS
from support.oracle.optimizers import EXACT, POWERS
from support.oracle.worker_cases import Squared
from support.runs.evaluated_runs import bits_of, train_and_evaluate
from support.runs.harness import make_driver
from test_scoring import OWN
from test_stop import ROOT

import pipeline
from pipeline import verify
from pipeline.serving import dense_files
from pipeline.serving.export import main as export_main
from pipeline.serving.http.admission import RequestError
from pipeline.serving.http.request import answer_post, read_request
from pipeline.serving.onnx_model import OnnxDense
from pipeline.serving.servable import (
    ONNX_FILE,
    REQUEST_FILE,
    RESPONSE_FILE,
    ROWS_FOLDER,
    SERVABLE_MANIFEST,
    WEIGHTS_FILE,
    read_servable,
)
from pipeline.serving.serve import main as serve_main
from pipeline.serving.served_model import open_served
from pipeline.settings.optimizer import DenseAdam, Ftrl, Optimizer
from pipeline.workflow import load

OPTIMIZERS = EXACT | POWERS | {"ftrl": Optimizer(rows=Ftrl(lr=0.1, l1=0.01, l2=0.01), dense=DenseAdam(lr=0.01))}
BACKENDS = ("torch", "onnx")
CLOSE = 1e-5


@pytest.fixture(scope="module")
def servable(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("servables") / "one"
    assert export(trained, out) == 0
    return out


def refuse(opened, model):
    raise NotImplementedError("not in this test")


@pytest.fixture
def without_programs(monkeypatch):
    """Exports have no ONNX file and no exported program, whose exporters take seconds."""
    monkeypatch.setattr(dense_files, "exported", refuse)


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "onnx":
        pytest.importorskip("onnxruntime")
    return request.param


def export(trained, out, *arguments):
    return export_main([str(trained.run_dir), "--out", str(out), "--commit", "last", *map(str, arguments)])


def check_scores(run, out, backends=BACKENDS):
    """Compare the scores of a servable, and with torch also those of the run itself, with the evaluation."""
    if "torch" in backends:
        with pipeline.open_run(run.run_dir, "last") as opened:
            assert (bits_of(opened.predict(run.test)) == run.logits_NT.view(np.uint32)).all()
    for backend in backends:
        with pipeline.open_servable(out, backend=backend) as opened:
            scores = opened.predict(run.test)
        found = scores.column("click.logit").to_numpy()
        if backend == "torch":
            assert (bits_of(scores) == run.logits_NT.view(np.uint32)).all()
        assert np.abs(found - run.logits_NT[:, 0]).max() <= CLOSE * max(1, np.abs(run.logits_NT).max())


@pytest.mark.parametrize("name", some(OPTIMIZERS, "dense adam with L2", "ftrl"))
def test_scores_are_those_of_the_commit_with_any_optimizer(data_root, tmp_path, name, without_programs):
    """Many rows are absent for long, and many test keys were never trained."""
    changes = {"embedding_dim": 0, "kind": MODELS["LR"][0], "args": {}} if name == "ftrl" else {}
    workflow = make_workflow(data_root, **changes).model_copy(update={"optimizer": OPTIMIZERS[name]})
    run = train_and_evaluate(workflow, tmp_path / "run")
    assert export(run, tmp_path / "out") == 0
    check_scores(run, tmp_path / "out", ("torch",))


@pytest.mark.parametrize("name", some(MODELS))
def test_scores_are_those_of_the_commit_with_any_model(data_root, tmp_path, name):
    pytest.importorskip("onnxruntime")
    kind, args = MODELS[name]
    workflow = make_workflow(data_root, kind=kind, args=args, embedding_dim=0 if name == "LR" else 4)
    run = train_and_evaluate(workflow, tmp_path / "run")
    assert export(run, tmp_path / "out") == 0
    check_scores(run, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "settings"),
    [({}, {"model.initial_bias": -2.0, "optimizer.dense.average": 3}), ({"categories": NARROW}, {})],
    ids=["initial bias and averages", "narrow fields"],
)
def test_scores_are_those_of_the_commit_with_other_settings(data_root, tmp_path, request, changes, settings):
    """Rows of unknown keys have weights that narrow fields do not use, whatever computes the dense model."""
    pytest.importorskip("onnxruntime")
    if changes:
        request.getfixturevalue("without_programs")
    run = train_and_evaluate(make_workflow(data_root, **changes).with_settings(settings), tmp_path / "run")
    assert export(run, tmp_path / "out") == 0
    check_scores(run, tmp_path / "out", BACKENDS if settings else ("torch",))


@pytest.mark.parametrize("cut", [1, 6, 7, 200])
def test_other_cuts_change_a_score_by_rounding_at_most(trained, servable, backend, cut):
    with pipeline.open_servable(servable, backend=backend) as opened:
        pieces = [opened.predict(trained.test.slice(at, cut)) for at in range(0, len(trained.test), cut)]
    found = pa.concat_tables(pieces).column("click.logit").to_numpy()
    assert np.abs(found - trained.logits_NT[:, 0]).max() <= CLOSE


def test_an_export_has_a_request_of_test_rows_and_its_answer(trained, servable):
    """Its workflow has numbers, integers, text and lists of both."""
    body = (servable / REQUEST_FILE).read_bytes()
    with closing(open_served(servable, MEMORY, None, "torch")) as served:
        table = read_request(body, None, served.inputs, served.outputs).table
        assert table.schema.equals(served.example().schema)
        expected = trained.test.slice(0, 2).select(table.column_names).to_pydict()
        assert table.to_pydict() == expected
        answered = answer_post(served, body, None, lambda timeout: None)
        shown, written = json.loads(answered.body), json.loads((servable / RESPONSE_FILE).read_text())
    assert {name: shown[name] for name in written} == written
    assert (np.float32(written["outputs"][0]["data"]) == trained.logits_NT[:2, 0]).all()


def test_the_client_of_the_guide_gets_the_answer_of_an_export(servable):
    guide = (ROOT / "docs" / "use.md").read_text()
    (client,) = re.findall(r"```python\n(import json\nimport urllib.*?)```", guide, re.DOTALL)
    exec(client, found := {})
    with running(servable, lambda folder: open_served(folder, MEMORY, None, "torch")) as port:
        url = f"http://127.0.0.1:{port}/v2/models/small/infer"
        scores = found["ask"](url, (servable / REQUEST_FILE).read_bytes())
    for output in json.loads((servable / RESPONSE_FILE).read_text())["outputs"]:
        assert np.allclose(scores[output["name"]], output["data"], rtol=0, atol=1e-5)


def test_a_request_is_made_up_where_the_data_are_gone(trained, tmp_path, without_programs):
    """The data's folder is another one for a moment."""
    root = trained.workflow.data.root
    root.rename(moved := root.with_name("moved"))
    try:
        assert export(trained, tmp_path / "out") == 0
    finally:
        moved.rename(root)
    shown = json.loads((tmp_path / "out" / REQUEST_FILE).read_text())
    assert {"name": "country", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]} in shown["inputs"]
    outputs = json.loads((tmp_path / "out" / RESPONSE_FILE).read_text())["outputs"]
    assert all(np.isfinite(output["data"]).all() for output in outputs)


def test_ids_up_to_2_to_the_64_are_announced_as_unsigned(tmp_path, without_programs):
    root = write_data(tmp_path / "data", num_train=30, num_keys=9)
    for path in root.glob("*.parquet"):
        table = pq.read_table(path)
        ids = pa.array([None if v is None else v + (1 << 63) for v in table["item"].to_pylist()], pa.uint64())
        lists = table["tags"].cast(pa.list_(pa.uint64()))
        pq.write_table(with_columns(table, item=ids, tags=lists), path)
    run = train_and_evaluate(make_workflow(root, epochs=1), tmp_path / "run")
    assert export(run, tmp_path / "out") == 0
    servable = read_servable(tmp_path / "out")
    assert servable.unsigned == ("item", "tags")
    types = {"item": "uint64", "tags": "list<element: uint64>", "price": "float"}
    assert types.items() <= servable.columns.items()
    with closing(open_served(tmp_path / "out", MEMORY, None, "torch")) as served:
        assert [spec.name for spec in served.inputs if spec.datatype == "UINT64"] == ["item", "tags"]
        body = (tmp_path / "out" / REQUEST_FILE).read_bytes()
        assert read_request(body, None, served.inputs, ()).table["item"].to_pylist() == run.test["item"][:2].to_pylist()


def test_a_server_scores_the_rows_next_to_a_bad_number(servable, trained):
    """JSON's 1e400 is one, too. Its row is scored, or has no score; or the request is refused, as --bad-values says."""
    served = open_served(servable, 1 << 24, None, "torch")
    table = served.example().take([0] * 3)
    table, clipped = (with_columns(table, age=pa.array([0, age, 3], pa.float32())) for age in (-5, 0))
    expected = served.predict(clipped).scores["click.logit"]
    body = json_request(table, served.inputs).replace(b"3.0]", b"1e400]")

    def answer(rule):
        model = open_served(servable, 1 << 24, None, "torch", rule)
        answered = answer_post(model, body, None, lambda timeout: None)
        model.close()
        return answered.answer, json.loads(answered.body)

    answered, shown = answer("clip")
    assert shown["parameters"]["bad_values.age"] == answered.bad["age"] == 2
    assert (shown["outputs"][0]["data"][:2] == expected[:2]).all()
    _, shown = answer("null")
    assert [value is None for value in shown["outputs"][1]["data"]] == [False, True, True]
    with pytest.raises(RequestError, match=r"'age' .*: 2 bad values, the first is -5.0 at row 1") as error:
        answer("refuse")
    assert error.value.status == 400
    served.close()


def test_rows_are_those_of_the_run(trained, servable):
    values = [None, *range(60), 10**15]
    with pipeline.open_run(trained.run_dir, "last") as run, pipeline.open_servable(servable) as opened:
        for column in ("item", "user", "history"):
            theirs = run.rows(column, values).select(["value", "key", "known", "weights"])
            assert opened.rows(column, values).equals(theirs)


MEMORY = 8 << 20
PREDICT = """
import sys

import numpy as np
import psutil
import pyarrow.parquet as pq

import pipeline

folder, file, memory, out = sys.argv[1:]
table, process = pq.read_table(file), psutil.Process()
# What torch and the batches take is there before, as far as possible.
with pipeline.open_servable(folder, int(memory) // 4, backend="torch") as opened:
    opened.predict(table.slice(0, 250))
before, most, pieces = process.memory_info().rss, 0, []
with pipeline.open_servable(folder, int(memory), backend="torch") as opened:
    for begin in range(0, len(table), 250):
        pieces.append(opened.predict(table.slice(begin, 250)).column("click.logit").to_numpy())
        most = max(most, process.memory_info().rss)
    assert opened.reader.table.num_bytes <= int(memory)
    print(opened.reader.table.cache.counts["bytes_read"], most - before)
np.save(out, np.concatenate(pieces))
"""
"""Program that scores a file in pieces of a batch."""


@pytest.mark.prove
def test_ten_times_the_memory_is_served_in_bounded_memory(tmp_path, without_programs):
    """Measure in a separate process, which has no freed memory to use again."""
    root = write_data(tmp_path / "data", num_train=6_000, num_keys=9_000)
    storage = {"device": "256 MiB", "host": "256 MiB"}
    workflow = make_workflow(
        root, embedding_dim=1_250, batch_size=250, epochs=1, shuffle_window=1000, storage=storage
    ).model_copy(update={"optimizer": OPTIMIZERS["sgd"]})
    sizes = {"device_rows": 4096, "host_rows": 4096, "ring_rows": 4096, "chunk_rows": 256}
    assert make_driver(workflow, tmp_path / "run", **sizes).run()
    table = pq.read_table(root / "train-0.parquet").slice(0, 2_000)
    pq.write_table(table, tmp_path / "table.parquet")
    out = tmp_path / "out"
    assert export_main([str(tmp_path / "run"), "--out", str(out), "--commit", "last"]) == 0
    num_bytes = sum(path.stat().st_size for path in (out / "rows").iterdir())
    assert num_bytes >= 10 * MEMORY
    said = subprocess.run(
        [sys.executable, "-c", PREDICT, out, tmp_path / "table.parquet", str(MEMORY), tmp_path / "found.npy"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    bytes_read, growth = map(int, said.split())
    assert bytes_read > num_bytes, "the table was not read once from end to end"
    assert growth < MEMORY + (64 << 20)
    values = [None, *range(0, 9_000, 9)]
    with (
        pipeline.open_run(tmp_path / "run", "last") as run,
        pipeline.open_servable(out, MEMORY, backend="torch") as opened,
    ):
        expected = run.predict(table).column("click.logit").to_numpy()
        for begin in range(0, len(values), 500):
            theirs = run.rows("item", values[begin : begin + 500]).select(["value", "key", "known", "weights"])
            assert opened.rows("item", values[begin : begin + 500]).equals(theirs)
    assert (np.load(tmp_path / "found.npy").view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize(("precision", "close"), [("float16", 2e-3), ("int8", 1e-1)])
def test_a_smaller_precision_is_close_and_smaller(trained, servable, tmp_path, precision, close, without_programs):
    assert export(trained, tmp_path / "out", "--precision", precision) == 0
    with pipeline.open_servable(tmp_path / "out") as small, pipeline.open_servable(servable) as exact:
        scores = [opened.predict(trained.test).column("click.logit").to_numpy() for opened in (small, exact)]
        known = small.rows("item", range(60))
        weights = [np.array(o.rows("item", range(60)).column("weights").to_pylist()) for o in (small, exact)]
    assert 0 < np.abs(scores[0] - scores[1]).max() < close
    # First rows are computed, not stored.
    first = ~np.array(known.column("known").to_pylist())
    assert first.any()
    assert (weights[0][first] == weights[1][first]).all()


def test_the_prior_correction_multiplies_the_odds(trained, tmp_path, without_programs):
    assert export(trained, tmp_path / "out", "--prior-correction", "0.1") == 0
    with pipeline.open_servable(tmp_path / "out", backend="torch") as opened:
        found = opened.predict(trained.test)
    assert np.allclose(found.column("click.logit").to_numpy(), trained.logits_NT[:, 0] + np.log(0.1), atol=1e-5)


def test_a_class_of_a_workflow_file_is_served_elsewhere(data_root, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    file = tmp_path / "mine.py"
    text = make_workflow(data_root, kind=Squared, args={}).model_dump_json()
    file.write_text(OWN.format(text=text.replace("many_rules.Squared", "workflow_mine.Mine")))
    run = train_and_evaluate(load(file), tmp_path / "run")
    monkeypatch.chdir("/")
    assert export(run, tmp_path / "out") == 2
    assert export(run, tmp_path / "out", "--workflow", file) == 0
    check_scores(run, tmp_path / "out", ("onnx",))
    with pytest.raises(ValueError, match="--workflow"):
        pipeline.open_servable(tmp_path / "out", backend="torch")
    with pipeline.open_servable(tmp_path / "out", backend="torch", workflow=file) as opened:
        assert (bits_of(opened.predict(run.test)) == run.logits_NT.view(np.uint32)).all()
    for arguments, said in ([], "give the workflow's file with --workflow"), (["--workflow", "no.py"], "no.py is not"):
        assert serve_main([str(tmp_path / "out"), "--port", "0", "--backend", "torch", *arguments]) == 2
        assert said in capsys.readouterr().err


class Unsaid(Squared):
    """Model that no exporter can trace."""

    def forward(self, numbers, embeddings, first_order):
        if embeddings.sum().item() > 1e9:
            return numbers.sum(1)
        return super().forward(numbers, embeddings, first_order)


def test_a_model_that_the_exporter_refuses_is_served_by_torch(data_root, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pipeline.serving.features.own_models", lambda: {"test_servable.Unsaid"})
    run = train_and_evaluate(make_workflow(data_root, kind=Unsaid, args={}), tmp_path / "run")
    assert export(run, tmp_path / "out") == 0
    assert f"{ONNX_FILE} is left out: " in capsys.readouterr().out
    check_scores(run, tmp_path / "out", ("torch",))
    with pytest.raises(ValueError, match=r"has no model\.onnx"):
        pipeline.open_servable(tmp_path / "out", backend="onnx")


class Poison:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_poison_in_a_file_runs_nothing(trained, servable, tmp_path, capsys):
    """A pickle in place of each file, its checksum made right."""
    from pipeline.storage.files import checksum

    for name in (WEIGHTS_FILE, ONNX_FILE, "rates.safetensors"):
        folder = tmp_path / name
        shutil.copytree(servable, folder)
        content = pickle.dumps(Poison(tmp_path / "ran"))
        (folder / name).write_bytes(content)
        manifest = read_servable(folder)
        forged = manifest.model_copy(update={"files": manifest.files | {name: checksum(content)}})
        (folder / SERVABLE_MANIFEST).write_bytes(forged.content)
        for backend in BACKENDS:
            with suppress(ValueError, OSError), pipeline.open_servable(folder, backend=backend) as opened:
                opened.predict(trained.test)
        verify.main([str(folder)])
    assert not (tmp_path / "ran").exists()


def test_a_step_without_rates_is_refused(data_root, tmp_path, without_programs):
    """Rates made up for a trillion of steps end the process."""
    workflow = make_workflow(data_root).model_copy(update={"optimizer": OPTIMIZERS["dense adam with L2"]})
    run = train_and_evaluate(workflow, tmp_path / "run")
    assert export(run, tmp_path / "out") == 0
    manifest = read_servable(tmp_path / "out")
    for step in (manifest.step + 1, 1 << 40):
        (tmp_path / "out" / SERVABLE_MANIFEST).write_bytes(manifest.model_copy(update={"step": step}).content)
        with pytest.raises(ValueError, match=f"to step {step}, and the history of rates ends at step {manifest.step}"):
            pipeline.open_servable(tmp_path / "out")
    assert verify.main([str(tmp_path / "out")]) == 1
    assert not [link for link in Path("/proc/self/fd").iterdir() if str(tmp_path / "out") in os.path.realpath(link)]


def test_verify_reads_every_bit_and_opening_all_but_rows(servable, tmp_path, capsys):
    assert verify.main([str(servable)]) == 0
    assert "intact" in capsys.readouterr().out
    rng = np.random.default_rng(5)
    files = [path.relative_to(servable) for path in servable.rglob("*") if path.is_file()]
    for name in files:
        folder = tmp_path / "damaged"
        shutil.copytree(servable, folder)
        flip(folder / name, rng.integers((folder / name).stat().st_size), 1 << int(rng.integers(8)))
        assert verify.main([str(folder)]) == 1, name
        assert "damaged" in capsys.readouterr().out
        if name.parent.name != ROWS_FOLDER and name.name not in (ONNX_FILE, REQUEST_FILE, RESPONSE_FILE):
            with pytest.raises((ValueError, OSError), match=re.escape(f"{folder / name}: ")):
                pipeline.open_servable(folder, backend="torch")
        (folder / name).unlink()
        assert verify.main([str(folder)]) in (1, 2), name
        shutil.rmtree(folder)


def test_a_folder_without_a_servable_is_refused(trained):
    with pytest.raises(ValueError, match="holds no servable"):
        pipeline.open_servable(trained.run_dir)
    with pytest.raises(ValueError, match="expected a size"):
        pipeline.open_servable(trained.run_dir, memory=0)


def test_a_bfloat16_run_is_exported_in_float32(data_root, tmp_path, without_programs):
    run = train_and_evaluate(make_workflow(data_root).with_settings({"model.precision": "bfloat16"}), tmp_path / "run")
    assert export(run, tmp_path / "out") == 0
    with pipeline.open_servable(tmp_path / "out", backend="torch") as opened:
        found = opened.predict(run.test).column("click.logit").to_numpy()
    assert 0 < np.abs(found - run.logits_NT[:, 0]).max() < 0.1


def test_a_missing_onnx_runtime_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match="install the extra serve, or use the backend torch"):
        OnnxDense(b"", 1)
