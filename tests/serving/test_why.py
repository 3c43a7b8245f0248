"""`pipeline why`: what a run knows of a value, against its rows as the rest of the package reads them."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest
from conftest import make_workflow, write_data
from depth import some
from evaluated_runs import THREE_TIERS
from harness import SPEED, make_driver
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizers import EXACT

import pipeline
from pipeline.__main__ import main
from pipeline.commits.manifest import Commits
from pipeline.serving.explained_value import explain_value, parse_value
from pipeline.serving.features import Features
from pipeline.serving.row_history import RowFinder, row_history
from pipeline.storage.files import Files
from pipeline.storage.shards import ONE_SHARD, Shards
from pipeline.workflow import Category, Commit, Number

VALUES = {"item": [None, *range(60)], "country": [None, *(f"c{n}" for n in range(60))], "tags": range(0, 60, 7)}


def train(root, folder, optimizer="dense adam with L2", shards=ONE_SHARD):
    """Train through three tiers, with a commit every few blocks; returns the run directory."""
    workflow = make_workflow(root).model_copy(
        update={"commit": Commit(every_blocks=3, keep=9), "optimizer": EXACT[optimizer]}
    )
    assert make_driver(workflow, folder, shards=shards, **THREE_TIERS).run()
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"), num_train=90, num_keys=60)


@pytest.fixture(scope="module")
def trained(root, tmp_path_factory):
    return train(root, tmp_path_factory.mktemp("run"), shards=Shards.all(3))


def norm(values):
    return pytest.approx(float(np.linalg.norm(np.float64(values))), rel=1e-6, abs=1e-12)


def check(run_dir, commit, field, value):
    """Raise unless all that is told of a value in a commit is that of the opened commit."""
    text = "null" if value is None else value
    found = explain_value(run_dir, f"{field}={text}", commit)
    with pipeline.open_run(run_dir, commit) as run:
        row = run.rows(field, [value]).to_pylist()[0]
        numbers = run.commits.column("number").to_pylist()
    assert found["key"] == f"{row['key']:#018x}"
    assert found["known"] == row["known"]
    assert found["weights"] == row["weights"]
    assert found["weights_norm"] == norm(row["weights"])
    assert [told["number"] for told in found["commits"]] == numbers
    if row["known"]:
        assert (found["count"], found["last_step"]) == (row["count"], row["last_step"])
        assert found["state_norms"] == {name: norm(row[name]) for name in found["state_norms"]}
        words = np.fromfile(found["file"], np.uint32, offset=found["offset"])
        assert words[:2].view(np.uint64)[0] == row["key"]
    return found


def test_a_value_is_told_as_the_opened_commit_has_it(trained):
    with pipeline.open_run(trained) as run:
        commits = run.commits.column("number").to_pylist()
    known = [
        check(trained, commit, field, value)["known"]
        for commit in (commits[0], commits[-1])
        for field, values in VALUES.items()
        for value in list(values)[::5]
    ]
    assert {True, False} == set(known)


@pytest.mark.parametrize("optimizer", some(("row-wise", "dense adam in bfloat16"), "dense adam in bfloat16"))
def test_state_and_weights_are_told_for_other_optimizers(root, tmp_path, optimizer):
    train(root, tmp_path, optimizer)
    found = [check(tmp_path, "last", "item", value) for value in range(0, 60, 9)]
    assert any(one["known"] for one in found)


@pytest.mark.prove
def test_the_commits_in_which_a_row_differs_are_those_of_the_differences_between_commits(trained):
    with pipeline.open_run(trained) as run:
        numbers = run.commits.column("number").to_pylist()
        diffs = [run.diff(before, after) for before, after in itertools.pairwise(numbers)]
        keys = {key for field, values in VALUES.items() for key in run.rows(field, values).column("key").to_pylist()}
    seen = set()
    for key in keys:
        changes = [row.change for row in row_history(trained, RowFinder(key), SPEED)]
        for change, diff in zip(changes[1:], diffs, strict=True):
            assert (change == "new") == (key in diff.new)
            assert (change == "changed") == (key in diff.changed)
        seen |= set(changes)
    assert seen == {"new", "changed", "same", "no row"}


def test_text_for_people_names_count_step_norms_and_place(trained, capsys):
    value = next(v for v in range(60) if explain_value(trained, f"item={v}")["known"])
    found = explain_value(trained, f"item={value}")
    assert main(["why", str(trained), f"item={value}"]) == 0
    said = capsys.readouterr().out
    assert f"key {found['key']} of table item, which history and item share, shard {found['shard']} of 3" in said
    assert f"count       {found['count']:,}" in said
    assert f"last step   {found['last_step']:,}" in said
    assert f"{found['file']}, row {found['row']:,} (byte {found['offset']:,})" in said
    assert said.count("table.zarr") == 1 + sum(commit["known"] for commit in found["commits"])
    assert "training may have moved the row" not in said
    assert main(["why", str(trained), f"item={value}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_a_value_that_was_never_trained_is_told_with_its_first_row(trained, capsys):
    assert main(["why", str(trained), "country=nowhere"]) == 0
    said = capsys.readouterr().out
    assert "it has no row" in said
    assert "follows from the seed and the key alone" in said


def test_a_missing_value_has_a_row_of_its_field_alone(trained, capsys):
    assert main(["why", str(trained), "item=null"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("item = null: key 0x")
    assert "of a missing value" in said
    assert "share" not in said


def test_a_run_that_goes_on_may_have_moved_the_row(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    assert main(["why", str(tmp_path / "run"), "item=1"]) == 0
    assert "training may have moved the row into memory" in capsys.readouterr().out


def test_a_model_class_of_the_users_own_need_not_be_at_hand(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    commits = Commits(tmp_path / "run", Files(), 9)
    state = json.loads(json.dumps(commits.all()[-1].state))
    state["workflow"]["model"]["kind"] = "elsewhere.Model"
    commits.publish(dataclasses.replace(commits.all()[-1], state=state))
    assert explain_value(tmp_path / "run", "item=1", "last")["key"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("contry=c1", "no categorical field 'contry'; did you mean 'country'?"),
        ("item=c1", "the values of item are integers"),
        ("item=1.5", "the values of item are integers"),
        (f"item={1 << 64}", "the values of item are integers"),
        ("price=3", "price is a number or a label"),
        ("item", "expected FIELD=VALUE, such as item=..."),
        ('country="c', "is read as JSON"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_in_a_line(trained, capsys, value, said):
    assert main(["why", str(trained), value]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_run_without_the_commit_is_refused_in_a_line(trained, tmp_path, capsys):
    assert main(["why", str(trained), "item=1", "--commit", "99"]) == 2
    assert "has no commit 99" in capsys.readouterr().err
    (tmp_path / "commits").mkdir()
    assert main(["why", str(tmp_path), "item=1"]) == 2
    assert "has no commit yet" in capsys.readouterr().err


def test_a_damaged_row_is_refused(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    value = next(v for v in range(60) if explain_value(tmp_path / "run", f"item={v}")["known"])
    found = explain_value(tmp_path / "run", f"item={value}")
    with open(found["file"], "r+b") as file:
        file.seek(found["offset"] + 9)
        file.write(b"\xff")
    assert main(["why", str(tmp_path / "run"), f"item={value}"]) == 2
    assert "wrong tag" in capsys.readouterr().err


def made_features(names, kind):
    return Features(
        labels=("click",), numbers=(Number(name="price"),), categories=tuple(Category(name=name) for name in names),
        kinds=dict.fromkeys(names, kind), seed=1, init_std=0.1, embedding_dim=2, first_order=True,
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_can_be_given(text):
    features = made_features(("a", "a=b"), "text")
    assert parse_value(f"a={json.dumps(text)}", features) == ("a", text)
    if text != "null" and text[:1] != '"' and not text.startswith("b="):
        assert parse_value(f"a={text}", features) == ("a", text)
    assert parse_value(f"a=b={json.dumps(text)}", features) == ("a=b", text)


@settings(max_examples=50, deadline=None)
@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_any_integer_can_be_given(value):
    assert parse_value(f"a={value}", made_features(("a",), "integers")) == ("a", value)
