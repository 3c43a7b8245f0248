"""`pipeline why`: what each kept commit has of a value, against its rows as `open_run` reads them."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from conftest import make_workflow
from support.depth import some
from support.oracle.optimizers import EXACT
from support.runs.evaluated_runs import THREE_TIERS
from support.runs.harness import make_driver

import pipeline
from pipeline.__main__ import main
from pipeline.commits.manifest import Commits
from pipeline.serving.features import Features
from pipeline.serving.value_history import parse_value, value_history
from pipeline.storage.files import Files
from pipeline.storage.shards import ONE_SHARD, Shards
from pipeline.workflow import Category, Commit

VALUES = {"item": [None, *range(60)], "country": [None, *(f"c{n}" for n in range(60))], "tags": range(0, 60, 7)}


def train(data_root, folder, optimizer="dense adam with L2", shards=ONE_SHARD):
    """Train through three tiers, with a commit every few blocks; returns the run directory."""
    workflow = make_workflow(data_root).model_copy(
        update={"commit": Commit(every_blocks=3, keep=9), "optimizer": EXACT[optimizer]}
    )
    assert make_driver(workflow, folder, shards=shards, **THREE_TIERS).run()
    return folder


@pytest.fixture(scope="module")
def trained(data_root, tmp_path_factory):
    return train(data_root, tmp_path_factory.mktemp("run"), shards=Shards.all(3))


def check(run_dir, field, value):
    """Compare what is shown of a value with all commits; return in which ones it has a row."""
    found = value_history(run_dir, f"{field}={'null' if value is None else value}")
    for commit in found["commits"]:
        with pipeline.open_run(run_dir, commit["number"]) as run:
            row = run.rows(field, [value]).to_pylist()[0]
            assert [one["number"] for one in found["commits"]] == run.commits.column("number").to_pylist()
        assert (found["key"], commit["known"]) == (f"{row['key']:#018x}", row["known"])
        assert commit["weights"] == row["weights"]
        assert commit["norm"] == pytest.approx(float(np.linalg.norm(np.float64(row["weights"]))))
        if row["known"]:
            assert (commit["count"], commit["last_step"]) == (row["count"], row["last_step"])
    return {commit["known"] for commit in found["commits"]}


def test_a_value_is_shown_as_each_commit_has_it(trained):
    known = [check(trained, field, value) for field, values in VALUES.items() for value in list(values)[::12]]
    assert set().union(*known) == {True, False}


@pytest.mark.parametrize("optimizer", some(("row-wise", "dense adam in bfloat16"), "dense adam in bfloat16"))
def test_weights_are_shown_for_other_optimizers(data_root, tmp_path, optimizer):
    train(data_root, tmp_path, optimizer)
    assert True in set().union(*(check(tmp_path, "item", value) for value in range(0, 60, 9)))


def test_text_and_json_name_count_step_norm_and_place(trained, capsys):
    assert main(["why", str(trained), "item=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == value_history(trained, "item=1")
    assert main(["why", str(trained), "item=1"]) == 0
    first, head, *lines = capsys.readouterr().out.splitlines()
    assert first == f"item = 1: key {found['key']}; in each kept commit:"
    assert head.split() == ["number", "name", "step", "count", "last_step", "norm", "file", "row"]
    for line, commit in zip(lines, found["commits"], strict=True):
        shown = [commit.get(name) for name in head.split()]
        assert line.split() == [
            "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value) for value in shown
        ]


def test_a_model_class_of_the_user_need_not_be_at_hand(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    commits = Commits(tmp_path / "run", Files(), 9)
    state = json.loads(json.dumps(commits.all()[-1].state))
    state["workflow"]["model"]["kind"] = "elsewhere.Model"
    commits.publish(dataclasses.replace(commits.all()[-1], state=state))
    assert value_history(tmp_path / "run", "item=1")["commits"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("contry=c1", "expected FIELD=VALUE, where the field is one of history"),
        ("price=3", "expected FIELD=VALUE"),
        ("item", "expected FIELD=VALUE"),
        ("item=c1", "values of 'item' are text, expected integers as in the training data"),
        (f"item={1 << 64}", "values of 'item' are neither integers of 64 bits"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_in_a_line(trained, capsys, value, said):
    assert main(["why", str(trained), value]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_damaged_row_is_refused(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    found = [value_history(tmp_path / "run", f"item={value}")["commits"][-1] for value in range(9)]
    commit = next(commit for commit in found if commit["known"])
    words = np.fromfile(commit["file"], np.uint32)
    words.reshape(4, -1)[commit["row"], 2] ^= 255
    words.tofile(commit["file"])
    assert main(["why", str(tmp_path / "run"), f"item={found.index(commit)}"]) == 2
    assert "wrong tag" in capsys.readouterr().err


def test_names_of_fields_may_have_an_equals_sign():
    features = Features(
        labels=("click",), numbers=(), categories=(Category(name="a"), Category(name="a=b")), seed=1, init_std=0.1,
        kinds={"a": "text", "a=b": "integers"}, embedding_dim=2, first_order=True,
    )  # fmt: skip
    assert parse_value("a=b=-7", features) == ("a=b", -7)
    assert parse_value("a=c=", features) == ("a", "c=")
    assert parse_value("a=", features) == ("a", "")
