"""Scores of a model that reads sequences are those of its evaluation, wherever they are computed."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.histories import workflow_with_histories, write_histories
from support.data.parquet_files import with_columns
from support.depth import some
from support.runs.evaluated_runs import bits_of, train_and_evaluate

import pipeline
from pipeline.models import BST, DIEN, DIN, MeanPooling
from pipeline.serving.export import main as export_main
from pipeline.serving.http.request import answer_post, read_request
from pipeline.serving.score import main as score_main
from pipeline.serving.servable import ONNX_FILE, REQUEST_FILE, RESPONSE_FILE
from pipeline.serving.served_model import open_served
from pipeline.workflow import load

MEMORY = 1 << 22


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = write_histories(tmp_path_factory.mktemp("data"), num_train=90, num_keys=60)
    return train_and_evaluate(workflow_with_histories(root), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def given(run):
    """File of the run's workflow, which has a model class of its user."""
    file = run.run_dir / "given.py"
    root = str(run.workflow.data.root)
    file.write_text(
        "from pathlib import Path\nfrom support.data.histories import workflow_with_histories\n"
        f"workflow = workflow_with_histories(Path({root!r}))\n"
    )
    return file


@pytest.fixture(scope="module")
def servable(run, given, tmp_path_factory):
    out = tmp_path_factory.mktemp("servables") / "one"
    assert export_main([str(run.run_dir), "--out", str(out), "--commit", "last", "--workflow", str(given)]) == 0
    return out


def test_an_open_run_and_a_servable_have_the_bits_of_the_evaluation(run, given, servable):
    with pipeline.open_run(run.run_dir, "last", workflow=given) as opened:
        assert (bits_of(opened.predict(run.test)) == run.logits_NT.view(np.uint32)).all()
    with pipeline.open_servable(servable, workflow=given, backend="torch") as opened:
        assert (bits_of(opened.predict(run.test)) == run.logits_NT.view(np.uint32)).all()


@pytest.mark.parametrize("kind", some([MeanPooling, DIN, DIEN, BST], DIN, DIEN))
def test_onnx_runtime_has_the_scores_of_torch(tmp_path, run, kind):
    """Or the servable says why there is no file: recurrences and transformers depend on the longest example."""
    pytest.importorskip("onnxruntime")
    args = {"hidden": (4,)} | ({"attention": (4,)} if kind in (DIN, DIEN) else {"heads": 1} if kind is BST else {})
    workflow = workflow_with_histories(run.workflow.data.root, kind=kind, args=args, epochs=1)
    trained = train_and_evaluate(workflow, tmp_path)
    out = tmp_path / "servable"
    assert export_main([str(trained.run_dir), "--out", str(out), "--commit", "last"]) == 0
    with pipeline.open_servable(out) as opened:
        assert opened.backend == ("onnx" if kind in (MeanPooling, DIN) else "torch")
        assert (ONNX_FILE in opened.manifest.left_out) == (opened.backend == "torch")
        empty = dict.fromkeys(("clicked", "clicked_in", "gaps", "viewed"), [[]] * len(run.test))
        for rows in (run.test, run.test.slice(0, 1), with_lists(run.test, empty)):
            with pipeline.open_servable(out, backend="torch") as other:
                expected = other.predict(rows)["click.logit"].to_numpy()
            assert np.abs(opened.predict(rows)["click.logit"].to_numpy() - expected).max() < 1e-5


def with_lists(table, lists):
    """The table with these values of its list columns."""
    arrays = {name: pa.array(values, table.schema.field(name).type) for name, values in lists.items()}
    return with_columns(table, **arrays)


def test_scored_files_have_the_bits_of_the_evaluation(run, given, tmp_path):
    test = run.workflow.data.root / "test.parquet"
    out = ["--out", str(tmp_path / "out"), "--commit", "last", "--workflow", str(given)]
    assert score_main([str(run.run_dir), str(test), *out]) == 0
    table = pq.read_table(tmp_path / "out" / "test.parquet")
    assert (bits_of(table) == run.logits_NT.view(np.uint32)).all()


def test_an_example_request_has_the_lists_of_two_rows(run, given, servable):
    body = (servable / REQUEST_FILE).read_bytes()
    with closing(open_served(servable, MEMORY, load(given), "torch")) as served:
        table = read_request(body, None, served.inputs, served.outputs).table
        assert table.schema.equals(served.example().schema)
        for name in ("clicked", "clicked_in", "gaps", "viewed"):
            assert table[name].to_pylist() == run.test[name][:2].to_pylist()
        answered = answer_post(served, body, None, lambda timeout: None)
    shown, written = json.loads(answered.body), json.loads((servable / RESPONSE_FILE).read_text())
    assert {name: shown[name] for name in written} == written
    assert (np.float32(written["outputs"][0]["data"]) == run.logits_NT[:2, 0]).all()


def test_a_longer_list_is_scored_by_its_latest_values(run, given):
    table = run.test
    longer = {name: [[row[0]] * 9 + row if row else row for row in table[name].to_pylist()] for name in
              ("clicked", "clicked_in", "gaps")}  # fmt: skip
    cut = [len(row or ()) >= 4 or not row for row in table["clicked"].to_pylist()]
    with pipeline.open_run(run.run_dir, "last", workflow=given) as opened:
        scores = opened.predict(with_lists(table, longer))["click.logit"].to_numpy()
    assert sum(cut) > 3
    assert (np.abs(scores - run.logits_NT[:, 0]) < 1e-6)[cut].all()


def test_keys_without_a_row_are_counted_by_list(given, servable):
    with closing(open_served(servable, MEMORY, load(given), "torch")) as served:
        unknown = with_lists(served.example(), {"viewed": [[10**9, 10**9 + 1]]})
        assert served.predict(unknown).unknown["viewed"] == 2


def test_the_row_of_a_value_of_a_list_is_found(run, given):
    lists = pq.read_table(run.workflow.data.root / "train-0.parquet")["viewed"].to_pylist()
    value = next(row[-1] for row in lists if row)
    with pipeline.open_run(run.run_dir, "last", workflow=given) as opened:
        (of_list,), (of_item,) = (opened.rows(name, value).to_pylist() for name in ("viewed", "item"))
    assert of_list == of_item
    assert of_list["known"]


@pytest.mark.parametrize(
    ("column", "lists", "said"),
    [
        ("gaps", [[0.5]], "'gaps' has 1 values and 'clicked' 2, in 1 rows from 0 on"),
        ("clicked", [[1, None]], "1 nulls in lists, the first in row 0"),
        ("gaps", [[0.5, float("inf")]], "1 values are not finite in float32, the first is inf in row 0"),
    ],
)
def test_lists_that_do_not_fit_are_refused(run, given, column, lists, said):
    columns = {"clicked": [[1, 2]], "clicked_in": [["a", "b"]], "gaps": [[0.5, 0.5]]} | {column: lists}
    with (
        pipeline.open_run(run.run_dir, "last", workflow=given) as opened,
        pytest.raises(ValueError, match="data\\.sequences") as error,
    ):
        opened.predict(with_lists(run.test.slice(0, 1), columns))
    assert said in str(error.value)
