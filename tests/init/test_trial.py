"""The trial of `init`: validation decides among candidates, the same way each time, and every refusal is said."""

import json
import os
import re
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.drafts import write_logs
from support.depth import some

import pipeline.init.trial as trial
from pipeline.driver.driver import Driver
from pipeline.files.find import named
from pipeline.init.look import look_at_files
from pipeline.init.main import main
from pipeline.init.roles import choose_roles
from pipeline.init.trial import mean_and_error, rows_of, sampled
from pipeline.models import LR, DeepFM
from pipeline.prepare.draft import Draft, DraftedCategory, Recipe
from pipeline.workflow import load

ROWS = 3000
TWO = (Recipe(True, 0.2, 1.0), Recipe(False, 3e-3, 1.0))


def log(interacts, rows=ROWS, seed=0):
    """A log whose clicks depend on user and item each by itself, or only on the two together."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 30, (2, rows))
    score = 3.0 * (2 * ((user + item) % 2) - 1) if interacts else 1.0 * (user % 2) + 1.0 * (item % 2) - 1
    click = (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(np.int8)
    return pa.table({"click": click, "user_id": user, "item_id": item, "price": rng.random(rows)})


def tried(folder, *options, **tables):
    """Workflow that `init` writes for these tables after a trial."""
    data, out = write_logs(folder / "data", **tables), folder / "my.py"
    assert main([str(data), "--out", str(out), "--fresh", *options]) == 0
    return load(out)


@pytest.fixture
def two(monkeypatch):
    """Two candidates and few epochs: the rule is the same for any."""
    monkeypatch.setattr(trial, "candidates", lambda draft: [trial.replace(draft, recipe=recipe) for recipe in TWO])


def draft_like(**settings):
    categories = [DraftedCategory("user_id"), DraftedCategory("item_id")]
    return Draft("d", "", "", {}, ["click"], [], categories, "", [], 100, {"click": 0.5}, **settings)


@pytest.mark.parametrize("interacts", some([False, True], True))
def test_validation_chooses_the_model_that_fits_the_log(tmp_path, capsys, two, interacts):
    # A linear model wins by less than a deep one where users and items interact, and so needs more rows to be chosen.
    rows = 4000 if interacts else 8000
    tables = {"train": log(interacts, rows), "valid": log(interacts, rows // 4, 1)}
    assert tried(tmp_path, **tables).model.kind is (DeepFM if interacts else LR)
    text, said = (tmp_path / "my.py").read_text(), capsys.readouterr().out
    # The figures that were printed are those of the comment.
    printed = dict(re.findall(r"  (\w+), rows' rate [\d.]+, L2 1 / rows: validation logloss ([\d.]+)", said))
    assert dict(re.findall(r"# [* ] (\w+), rows' rate [\d.]+, L2 1 / rows +([\d.]+)", text)) == printed
    if interacts:
        # Nothing but the files decides.
        tried(tmp_path, **tables)
        assert (tmp_path / "my.py").read_text() == text


@pytest.mark.parametrize("linear_wins", [False, True])
def test_numbers_have_the_buckets_of_the_model_that_is_taken(tmp_path, monkeypatch, two, linear_wins):
    monkeypatch.setattr("pipeline.prepare.draft.ROWS_OF_BUCKET", 30)
    edges = {}

    def trained(draft, path, *_):
        known = json.loads((path.parent / draft.statistics).read_text())
        edges[draft.recipe.is_linear] = len(known["price_bucket"]["edges"])
        return trial.Trial(draft, np.zeros(500), 0.5 if draft.recipe.is_linear == linear_wins else 0.6, 1)

    monkeypatch.setattr(trial, "trained", trained)
    workflow = tried(tmp_path, train=log(True), valid=log(True, 500, 1))
    assert edges == {True: 31, False: 99}
    (bucket,) = (feature for feature in workflow.data.features if feature.kind == "bucket")
    assert (bucket.quantiles, len(bucket.edges)) == ((32, 31) if linear_wins else (100, 99))


def test_the_predicted_minutes_count_all_values_of_lists(tmp_path, monkeypatch, two, capsys):
    monkeypatch.setattr(trial, "SECONDS_OF_EPOCH", 0.0)
    # A minute for each value of a row, of both candidates in all epochs.
    monkeypatch.setattr(trial, "SECONDS_OF_CELL", 60 / (2 * trial.MAX_EPOCHS * (ROWS + 500)))
    monkeypatch.setattr(trial, "trained", lambda draft, *_: trial.Trial(draft, np.zeros(500), 0.5, 1))
    tables = {"train": log(False), "valid": log(False, 500, 1)}
    tried(tmp_path, **tables)
    lists = {name: pa.array([[n, *range(9)] for n in range(len(table))]) for name, table in tables.items()}
    tried(tmp_path, **{name: table.append_column("tags", lists[name]) for name, table in tables.items()})
    assert re.findall(r"in about (\d+) minutes at most", capsys.readouterr().out) == ["3", "13"]


def test_the_sample_is_drawn_by_a_seed_and_keeps_the_order(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "MOST_ROWS", 100)
    files = []
    for n in range(3):
        values = pa.array(np.arange(200 * n, 200 * (n + 1)))
        columns = {"x": values} | ({"y": values} if n else {})
        pq.write_table(pa.table(columns), tmp_path / f"{n}.parquet", row_group_size=30)
        files.append(named(tmp_path / f"{n}.parquet"))
    table, whole = sampled(files, ["x", "y", "nowhere"])
    values = table.column("x").to_numpy()
    assert (len(table), whole, table.column_names) == (100, False, ["x", "y"])
    assert (np.diff(values) > 0).all()
    assert {*values // 200} == {0, 1, 2}
    assert sampled(files, ["x"])[0].column("x").equals(table.column("x"))
    assert table.filter(pa.array(values >= 200)).column("y").null_count == 0
    monkeypatch.setattr(trial, "MOST_ROWS", 600)
    table, whole = sampled(files, ["x"])
    assert whole
    assert table.column("x").to_pylist() == list(range(600))


@pytest.mark.parametrize("by", ["time", "group", "nothing"])
def test_without_a_validation_split_one_is_made(tmp_path, by):
    rng = np.random.default_rng(0)
    table = log(False).append_column("day", pa.array(np.datetime64("2026-11-24", "s") + rng.permutation(ROWS)))
    folder = write_logs(tmp_path, train=table if by == "time" else table.drop_columns(["day"]))
    look = look_at_files([named(folder / "train.parquet")])
    draft = draft_like(group="user_id" if by != "nothing" else "")
    rows = rows_of(draft, {"train": look.paths}, choose_roles(look, ["click"]))
    assert len(rows.train) + len(rows.held) == ROWS
    assert 0.03 * ROWS < len(rows.held) < 0.25 * ROWS
    users = [{*part.column("user_id").to_pylist()} for part in (rows.train, rows.held)]
    assert bool(users[0] & users[1]) == (by != "group")
    if by == "time":
        last = max(rows.train.column("day").to_pylist())
        assert last < min(rows.held.column("day").to_pylist())


def test_the_epochs_of_the_trial_are_those_without_validation(tmp_path, two, capsys):
    workflow, said = tried(tmp_path, train=log(False), test=log(False, 500, 1)), capsys.readouterr().out
    taken = re.search(r"taken: (.*)", said)[1]
    epochs = re.search(rf"{re.escape(taken)}: validation logloss [\d.]+ in epoch (\d+)", said)[1]
    assert (workflow.schedule.plateau, workflow.schedule.epochs) == (None, int(epochs))
    assert "drawn at random" in (tmp_path / "my.py").read_text()


@pytest.mark.parametrize("where", ["train", "valid"])
def test_a_split_with_one_class_is_said_and_the_draft_is_written(tmp_path, capsys, where):
    one = log(False).filter(pa.array(log(False).column("click").to_numpy() == 0))
    texts = []
    for option in ("--try", "--no-try"):
        tried(tmp_path, option, **{"train": log(False), "valid": log(False, 500, 1), where: one})
        texts.append((tmp_path / "my.py").read_text())
    assert capsys.readouterr().out.count("no candidates are tried: click has one value in the") == 1
    assert texts[0] == texts[1]


@pytest.mark.parametrize("form", some(["weight", "group", "labels"], "group", "labels"))
def test_weights_groups_and_labels_reach_the_trial(tmp_path, monkeypatch, form):
    rng = np.random.default_rng(3)
    monkeypatch.setattr(trial, "candidates", lambda draft: [draft])
    table, held = (t.append_column("w", pa.array(rng.random(len(t)))) for t in (log(False), log(False, 500, 1)))
    table, held = (t.append_column("buy", t.column("click")) for t in (table, held))
    options = {"weight": ["--as", "w=weight"], "group": ["--as", "user_id=group"], "labels": ["--label", "buy"]}[form]
    workflow = tried(tmp_path, "--label", "click", *options, train=table, valid=held)
    assert "# * " in (tmp_path / "my.py").read_text()
    assert workflow.data.weight == ("w" if form == "weight" else None)
    assert workflow.metrics.group == ("user_id" if form == "group" else None)
    assert len(workflow.data.labels) == 1 + (form == "labels")


def test_rows_of_one_group_are_not_independent():
    values_N = np.repeat(np.random.default_rng(0).normal(0, 1, 100), 50)
    held = pa.table({"user": pa.array(np.repeat(np.arange(100), 50)), "w": pa.array(np.ones(5000))})
    _, plain = mean_and_error(values_N, held, draft_like(weight="w"))
    _, grouped = mean_and_error(values_N, held, draft_like(group="user"))
    assert grouped == pytest.approx(plain * np.sqrt(50))
    weights = held.set_column(1, "w", pa.array((np.arange(5000) < 50).astype(float)))
    assert mean_and_error(values_N, weights, draft_like(weight="w"))[0] == pytest.approx(values_N[0])


@pytest.mark.parametrize("when", ["before", "training"])
def test_an_interrupt_during_the_trial_writes_the_first_draft(tmp_path, capfd, two, monkeypatch, when):
    owner, name = (trial, "plan_session") if when == "before" else (Driver, "begin")
    work = getattr(owner, name)

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return work(*arguments)

    monkeypatch.setattr(owner, name, interrupted)
    assert tried(tmp_path, train=log(False), valid=log(False, 500, 1)).model.kind is DeepFM
    said, errors = capfd.readouterr()
    assert "interrupted: the draft is that of --no-try; the same command with --fresh tries" in said
    assert "SIGINT: no more is tried" in errors
    assert "a commit" not in errors
    assert "# Tried" not in (tmp_path / "my.py").read_text()


def test_a_candidate_that_fails_leaves_the_others(tmp_path, capsys, two, monkeypatch):
    plan = trial.plan_session

    def refused(workflow, *others):
        if workflow.model.kind is LR:
            raise ValueError("too small")
        return plan(workflow, *others)

    monkeypatch.setattr(trial, "plan_session", refused)
    assert tried(tmp_path, train=log(False), valid=log(False, 500, 1)).model.kind is DeepFM
    assert "linear, rows' rate 0.2, L2 1 / rows failed: too small" in capsys.readouterr().out
    assert "#   linear, rows' rate 0.2, L2 1 / rows  failed" in (tmp_path / "my.py").read_text()
