"""Rows are exported as (table, value, vector): each value of the training data with the row that it is read with."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import make_table, make_workflow
from support.oracle.reference import key_of
from support.runs.evaluated_runs import train_and_evaluate
from test_scoring import contents
from test_servable import OPTIMIZERS, export

import pipeline
from pipeline.serving import parquet_export
from pipeline.storage.files import Files


@pytest.fixture(scope="module")
def trained(data_root, tmp_path_factory):
    workflow = make_workflow(data_root).model_copy(update={"optimizer": OPTIMIZERS["dense adam with L2"]})
    return train_and_evaluate(workflow, tmp_path_factory.mktemp("run"))


def rows_of(out):
    return ds.dataset(out).to_table().to_pylist()


@pytest.mark.parametrize("at_once", [1 << 18, 7])
def test_each_row_has_its_table_value_and_vector(trained, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(parquet_export, "ROWS_AT_ONCE", at_once)
    assert export(trained, tmp_path / "out", "--format", "parquet") == 0
    rows = rows_of(tmp_path / "out")
    assert len(rows) == trained.result["rows"]
    assert {row["table"] for row in rows} == {"item", "user", "country", "tags"}
    columns = {"item": "item", "user": "user", "country": "country", "tags": "tags"}
    with pipeline.open_run(trained.run_dir, "last") as run:
        for table, column in columns.items():
            mine = {row["value"]: row for row in rows if row["table"] == table and row["value"] is not None}
            values = [value if table == "country" else int(value) for value in mine]
            found = run.rows(column, values).to_pylist()
            assert len(found) > 10
            for row in found:
                exported = mine[str(row["value"])]
                assert row["known"]
                assert exported["key"] == row["key"] == key_of(row["value"], column, table)
                assert exported["vector"] + [exported["first_order"]] == row["weights"]
    # The missing values of a column have their own row, in the column's table.
    missing = {row["key"]: row["table"] for row in rows if row["value"] is None}
    assert missing[key_of(None, "history", "item")] == missing[key_of(None, "item", "item")] == "item"
    assert len(missing) == 5


@pytest.mark.parametrize("values", [np.arange(2**63, 2**63 + 9, dtype=np.uint64), np.arange(9.0), np.arange(2) > 0])
def test_values_of_any_integers_are_exported_as_text(data_root, tmp_path, values):
    """Of unsigned ones, of those that are floats or booleans, and of files that have none."""
    shutil.copytree(data_root, tmp_path / "data")
    for path in (tmp_path / "data").glob("*.parquet"):
        log = pq.read_table(path)
        users = pa.array(np.resize(values, len(log)))
        users = pa.nulls(len(log)) if path.name == "train-1.parquet" else users
        pq.write_table(log.set_column(log.column_names.index("user"), "user", users), path)
    run = train_and_evaluate(make_workflow(tmp_path / "data"), tmp_path / "run")
    assert export(run, tmp_path / "out", "--format", "parquet") == 0
    rows = [row for row in rows_of(tmp_path / "out") if row["table"] == "user" and row["value"] is not None]
    users = list(map(int, values.tolist()))
    assert {row["value"]: row["key"] for row in rows} == {str(user): key_of(user, "user", "user") for user in users}


def test_rows_whose_value_is_gone_are_counted_and_kept(data_root, tmp_path, capsys):
    shutil.copytree(data_root, tmp_path / "data")
    run = train_and_evaluate(make_workflow(tmp_path / "data"), tmp_path / "run")
    table = make_table(np.random.default_rng(1), 30, 5)
    for path in (tmp_path / "data").glob("train-*.parquet"):
        pq.write_table(table, path)
    assert export(run, tmp_path / "out", "--format", "parquet") == 0
    rows = rows_of(tmp_path / "out")
    assert len(rows) == run.result["rows"]
    lost = [row for row in rows if row["table"] is None]
    assert lost
    assert all(row["value"] is None and row["key"] for row in lost)
    assert f"{len(lost)} of values not in the training data" in capsys.readouterr().out


def test_a_killed_export_of_rows_resumes_to_the_same_bytes(trained, tmp_path, monkeypatch, capsys):
    assert export(trained, tmp_path / "whole", "--format", "parquet") == 0
    rename, calls, stop = Files.system.rename, [], 0

    class System:
        def __getattr__(self, name):
            return getattr(original, name)

        def rename(self, source, target):
            if len(calls) == stop:
                raise KeyboardInterrupt
            calls.append(target)
            rename(source, target)

    original = Files.system
    monkeypatch.setattr(Files, "system", System())
    while (code := export(trained, tmp_path / "out", "--format", "parquet")) != 0:
        assert code == 130
        # A reader of the folder sees files of rows alone.
        assert {Path(file).suffix for file in ds.dataset(tmp_path / "out").files} <= {".parquet"}
        calls.clear()
        stop += 1
    # The sorted keys, their weights, and the file of rows.
    assert stop == 3
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    capsys.readouterr()
    for out in ("whole", "out"):
        assert export(trained, tmp_path / out, "--format", "parquet") == 0
    first, second = (line for line in capsys.readouterr().out.splitlines() if " rows, " in line)
    assert first.split(": ")[0] == second.split(": ")[0]


def test_arguments_of_a_servable_are_refused(trained, tmp_path, capsys):
    assert export(trained, tmp_path / "out", "--format", "parquet", "--precision", "int8") == 2
    assert "--format parquet does not take --publish" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["0000.parquet", "export.json", "manifest.json"])
def test_a_folder_of_other_rows_or_an_earlier_version_is_refused(trained, tmp_path, capsys, name):
    pq.write_table(pq.read_table(trained.workflow.data.root / "test.parquet"), tmp_path / name)
    before = contents(tmp_path)
    assert export(trained, tmp_path, "--format", "parquet") == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} has other files than" in said
    assert said.endswith("; --fresh moves it aside, --out names another folder\n")
    assert contents(tmp_path) == before
