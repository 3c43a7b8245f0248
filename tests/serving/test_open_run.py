"""A trained run is opened in Python: its scores have the bits of its evaluation, its rows those of the log."""

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from conftest import make_workflow
from support.data.parquet_files import with_columns
from support.depth import some
from support.faults.small_disk import need_namespaces
from support.oracle.optimizers import EXACT
from support.oracle.reference import Reference, key_of
from support.runs.evaluated_runs import bits_of, train_and_evaluate
from test_stop import ROOT

import pipeline
from pipeline.commits.manifest import Commits
from pipeline.serving import opened as module
from pipeline.storage.files import Files
from pipeline.workflow import Commit, Metrics


@pytest.fixture(scope="module")
def trained(data_root, tmp_path_factory):
    workflow = make_workflow(data_root, weight="importance").model_copy(
        update={"metrics": Metrics(group="user"), "commit": Commit(every_blocks=3, keep=9)}
    )
    return train_and_evaluate(workflow, tmp_path_factory.mktemp("run"))


@pytest.fixture
def opened(trained):
    with pipeline.open_run(trained.run_dir, "last") as run:
        yield run


def test_metrics_are_those_of_the_evaluation(trained, opened):
    reported = trained.result["epochs"][-1]
    assert reported["split"] == "test"
    found = opened.evaluate(trained.test)
    assert "gauc" in found
    assert found == {name: reported[name] for name in found}


@pytest.mark.parametrize("cut", [6, 12])
def test_whole_batches_have_the_bits_of_the_evaluation(trained, opened, cut):
    pieces = [opened.predict(trained.test.slice(at, cut)) for at in range(0, len(trained.test), cut)]
    assert (bits_of(pa.concat_tables(pieces)) == trained.logits_NT.view(np.uint32)).all()


def test_an_empty_table_has_no_scores(trained, opened):
    scores = opened.predict(trained.test.slice(0, 0))
    assert scores.num_rows == 0
    assert scores.column_names == ["click.logit", "click.probability"]


def test_threads_that_begin_together_share_one_model_and_one_map(trained, opened, monkeypatch):
    made = []

    def slowly(name):
        really = getattr(module, name)

        def make(*arguments):
            made.append(name)
            # Time for the other thread to find nothing made yet.
            time.sleep(0.1)
            return really(*arguments)

        return make

    for name in ("merge_dense", "model_of", "CommitRows"):
        monkeypatch.setattr(module, name, slowly(name))
    with ThreadPoolExecutor(4) as threads:
        tables = list(threads.map(opened.predict, [trained.test] * 16))
    assert sorted(made) == ["CommitRows", "merge_dense", "model_of"]
    for table in tables:
        assert (bits_of(table) == trained.logits_NT.view(np.uint32)).all()


def test_a_closed_run_reads_nothing_and_waits_for_those_who_read(trained):
    for used in (False, True):
        run = pipeline.open_run(trained.run_dir, "last")
        if used:
            run.predict(trained.test)
        said = []

        def ask(run=run, said=said):
            try:
                while True:
                    run.rows("item", range(60))
            except ValueError as error:
                said.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(3 if used else 0)]
        for thread in threads:
            thread.start()
        run.close()
        for thread in threads:
            thread.join()
        assert all("is closed" in text for text in said)
        assert len(said) == len(threads)
        with pytest.raises(ValueError, match="is closed"):
            run.predict(trained.test)
        run.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop_columns(["item"]), "the table: column 'item' .* is missing"),
        (lambda t: t.append_column("item", t.column("user")), "the table: column 'item' .* is there 2 times"),
        (lambda t: with_columns(t, item=t.column("item").cast(pa.string())),
         "'item' .* holds text, expected integers as in the training data"),
        (lambda t: with_columns(t, age=t.column("country")), "'age' .* has type string"),
        (lambda t: with_columns(t, item=pa.array([1.5] * len(t))), "1.5 at row 0 is no"),
    ],
    ids=["missing", "twice", "other kind", "other type", "no integer"],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_with_the_column(trained, opened, change, said):
    with pytest.raises(ValueError, match=said):
        opened.predict(change(trained.test))
    assert (bits_of(opened.predict(trained.test)) == trained.logits_NT.view(np.uint32)).all()


def test_bad_numbers_of_a_table_are_counted_and_scored(trained, opened):
    ages = [1] * (len(trained.test) - 2)
    bad, good = (with_columns(trained.test, age=pa.array([-5, *ages, value])) for value in (-1, 0))
    with pytest.warns(UserWarning, match=r"'age': 2 bad values, the first is -5 at row 0 of the table") as seen:
        found = opened.predict(bad)
    assert seen[0].filename == __file__
    expected = bits_of(opened.predict(with_columns(good, age=pa.array([0, *ages, 0]))))
    assert (bits_of(found) == expected).all()
    with pipeline.open_run(trained.run_dir, "last", bad_values="null") as run:
        with pytest.warns(UserWarning, match="'age': 2 bad values"):
            logits = run.predict(bad).column("click.logit").to_pylist()
        with pytest.warns(UserWarning, match="'age': 2 bad values"):
            metrics = run.evaluate(bad)
    assert [at for at, value in enumerate(logits) if value is None] == [0, len(bad) - 1]
    assert metrics["examples"] == len(bad) - 2
    said = r"'age' \(data.numbers\): 1 bad value, the first is -5"
    with pipeline.open_run(trained.run_dir, "last", bad_values="refuse") as run, pytest.raises(ValueError, match=said):
        run.predict(bad)
    with pytest.raises(ValueError, match="bad_values is 'drop'; expected one of clip, null, refuse"):
        pipeline.open_run(trained.run_dir, bad_values="drop")


@pytest.mark.parametrize("name", ["item", "country", "history", "age"])
def test_a_column_of_none_is_one_of_missing_values(trained, opened, name):
    typed = with_columns(trained.test, **{name: pa.nulls(len(trained.test), trained.test.schema.field(name).type)})
    untyped = with_columns(trained.test, **{name: pa.nulls(len(trained.test))})
    assert opened.predict(untyped).equals(opened.predict(typed))


def test_lists_without_any_value_are_empty_lists(trained, opened):
    empty = [[] for _ in range(len(trained.test))]
    kinds = pa.list_(pa.null()), pa.list_(pa.int64())
    found, expected = (with_columns(trained.test, tags=pa.array(empty, kind)) for kind in kinds)
    assert opened.predict(found).equals(opened.predict(expected))


def test_floats_that_are_integers_have_the_keys_of_integers(trained, opened):
    items = [None, *trained.test["item"].to_pylist()[1:]]
    whole, floats = (with_columns(trained.test, item=pa.array(items, kind)) for kind in (pa.int64(), pa.float64()))
    assert opened.predict(floats).equals(opened.predict(whole))
    for value in (1.5, 2.0**53 + 2, np.inf):
        with pytest.raises(ValueError, match=r"the table: column 'item' .* at row 1 is not an integer up to 9,007"):
            opened.predict(with_columns(trained.test, item=pa.array([1.0, *[value] * (len(trained.test) - 1)])))


@pytest.mark.parametrize(
    ("column", "value"),
    [("country", "c3"), ("country", b"c3"), ("country", np.str_("c3")), ("country", None), ("item", 3), ("item", 3.0),
     ("item", np.int32(3)), ("item", np.array(3)), ("item", pa.scalar(3)), ("history", 3), ("item", True)],
)  # fmt: skip
def test_one_value_is_looked_up_as_one_value(opened, column, value):
    listed = 3 if isinstance(value, pa.Scalar | np.ndarray) else value
    found = opened.rows(column, value)
    assert found.num_rows == 1
    assert found.column("key") == opened.rows(column, [listed]).column("key")
    assert found.column("known").to_pylist() == [True]


def test_rows_are_those_of_the_plain_trainer(trained, opened):
    reference = Reference(trained.workflow)
    reference.train()
    trained_keys = {value for value in range(60) if key_of(value, "item", "item") in reference.rows}
    assert 0 < len(trained_keys) < 60
    found = opened.rows("item", [*range(60), None, 17])
    assert found.column("value").to_pylist() == [*range(60), None, 17]
    for row in found.to_pylist():
        key = key_of(row["value"], "item", "item")
        assert row["key"] == key
        assert row["known"] == (key in reference.rows)
        if row["known"]:
            assert np.array_equal(np.float32(row["weights"]), reference.rows[key]["w"])
            assert (row["last_step"], row["count"]) == reference.counts[key]


@pytest.mark.parametrize("optimizer", some(("row-wise", "dense adam in bfloat16"), "dense adam in bfloat16"))
def test_batches_have_each_row_of_the_table_once(data_root, tmp_path, optimizer):
    workflow = make_workflow(data_root).model_copy(update={"optimizer": EXACT[optimizer]})
    trained = train_and_evaluate(workflow, tmp_path)
    with pipeline.open_run(trained.run_dir, "last") as opened:
        batches = list(opened.table_batches())
        table = pa.Table.from_batches(batches)
        weights = dict(zip(table["key"].to_pylist(), table["weights"].to_pylist(), strict=True))
        assert len(batches) > 9, "a batch is a chunk of the log"
        assert table.schema.types == [pa.uint64(), pa.list_(pa.float32(), 4)]
        assert len(weights) == table.num_rows == trained.result["rows"]
        known = [row for row in opened.rows("item", range(60)).to_pylist() if row["known"]]
        assert 0 < len(known) < 60
        assert all(weights[row["key"]] == row["weights"] for row in known)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [("price", [1], "not a categorical column; expected one of h"), ("item", ["a"], "are text, expected integers"),
     ("country", [1], "are integers, expected text"), ("item", [1.5], "expected integers"),
     ("country", ["c1", 3], "neither integers of 64 bits nor texts"), ("item", [1 << 64], "neither integers")],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(opened, column, values, said):
    with pytest.raises(ValueError, match=said):
        opened.rows(column, values)


def test_commits_and_metrics_are_tables(trained, opened):
    commits = opened.commits.to_pylist()
    numbers = [commit["number"] for commit in commits]
    assert numbers == sorted(numbers)
    assert opened.commit == numbers[-1]
    with pipeline.open_run(trained.run_dir) as best:
        assert [commit["number"] for commit in commits if commit["name"] == "best"] == [best.commit]
    assert opened.metrics.column("split").to_pylist() == ["validation", "validation", "test"]
    assert opened.metrics.to_pylist()[-1]["auc"] == trained.result["auc"]


def test_a_run_is_shown_with_its_commit(trained, opened):
    shown = repr(opened)
    assert f"commit {opened.commit} of small (" in shown
    assert shown.endswith(" rows, finished>")


def test_a_map_above_the_memory_is_refused_with_the_numbers(trained):
    with pipeline.open_run(trained.run_dir, memory="1 KiB") as run, pytest.raises(ValueError, match="export") as said:
        run.predict(trained.test)
    assert "1 KiB" in str(said.value)
    with pytest.raises(ValueError, match="expected a size"):
        pipeline.open_run(trained.run_dir, memory="much")


@pytest.mark.parametrize(("commit", "said"), [(99, "has no commit 99"), ("first", "expected best, last, or a number")])
def test_a_commit_that_is_not_there_is_named_with_those_that_are(trained, commit, said):
    with pytest.raises(ValueError, match=said):
        pipeline.open_run(trained.run_dir, commit)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        pipeline.open_run(tmp_path)


def test_reading_changes_no_file(trained, tmp_path):
    def state():
        return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in trained.run_dir.rglob("*"))

    before = state()
    modes = [(path, path.stat().st_mode) for path in [trained.run_dir, *trained.run_dir.rglob("*")]]
    try:
        for path, mode in modes:
            path.chmod(mode & 0o555)
        for _ in range(20):
            with pipeline.open_run(trained.run_dir) as run:
                run.predict(trained.test)
                run.rows("item", [1])
    finally:
        for path, mode in modes:
            path.chmod(mode)
    assert state() == before


READ = """
import errno
import os
import sys

import pyarrow.parquet as pq

import pipeline
from pipeline.serving import dense_files
from pipeline.serving.export import main as export
from pipeline.serving.score import main as score

run_dir, file, out = sys.argv[1:]
try:
    os.utime(run_dir)
except OSError as error:
    assert error.errno == errno.EROFS, error
else:
    sys.exit("the run directory can be written")
# Exporters of the dense part take seconds, and know nothing of the run directory.
dense_files.exported = None
table = pq.read_table(file)
with pipeline.open_run(run_dir, "last") as run:
    run.predict(table)
    run.evaluate(table)
    run.rows("item", range(60))
    assert list(run.table_batches())
assert score([run_dir, file, "--out", out + "/scored"]) == 0
assert export([run_dir, "--out", out + "/servable"]) == 0
"""
"""Program that reads a run in every way."""


@pytest.mark.prove
def test_a_run_on_a_read_only_disk_is_read_in_every_way(trained, tmp_path):
    need_namespaces()
    mounted = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    program = [sys.executable, "-c", READ, str(trained.run_dir), f"{trained.workflow.data.root}/test.parquet"]
    subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted, str(trained.run_dir), *program, str(tmp_path)], cwd=ROOT, check=True
    )
    assert {path.name for path in tmp_path.iterdir()} >= {"scored", "servable"}


def test_a_class_that_only_the_run_names_is_never_imported(trained, tmp_path, monkeypatch):
    shutil.copytree(trained.run_dir, tmp_path / "run")
    commits = Commits(tmp_path / "run", Files(), 9)
    newest = commits.all()[-1]
    state = json.loads(json.dumps(newest.state))
    state["workflow"]["model"]["kind"] = "poison.Model"
    commits.publish(dataclasses.replace(newest, state=state))
    (tmp_path / "poison.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"poison.Model.*--workflow"):
        pipeline.open_run(tmp_path / "run", newest.number)
    assert not (tmp_path / "ran").exists()
