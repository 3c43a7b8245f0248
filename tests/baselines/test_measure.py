"""Baselines in the result of a run: exact where a plain loop can compute them, of a first run only, and with advice."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.baselines import measure
from pipeline.baselines.measure import PRIOR_ROWS, baselines_of
from pipeline.run import main
from pipeline.settings import SPLITS
from pipeline.workflow import Category, Data, Model, Number, Schedule, Task, Workflow

ROWS = {"train": 4000, "validation": 1000, "test": 500}


def tables(interacts=False, seed=0):
    """Splits whose clicks depend on the user, or on user and item together, with nulls in a second label."""
    for n, (split, rows) in enumerate(ROWS.items()):
        rng = np.random.default_rng(seed + n)
        user, item = rng.integers(0, 20, (2, rows))
        chance = np.where((user + item) % 2 if interacts else user % 2, 0.9, 0.1)
        click = (rng.random(rows) < chance).astype(np.int8)
        buy = [None if rng.random() < 0.2 else int(rng.random() < 0.3) for _ in range(rows)]
        lists = [[*map(int, rng.integers(0, 9, rng.integers(0, 3)))] for _ in range(rows)]
        columns = {"click": click, "buy": buy, "user": user, "item": item, "seen": lists}
        columns |= {"price": rng.random(rows), "weight": rng.random(rows), "past": lists[::-1]}
        yield split, pa.table({name: pa.array(values) for name, values in columns.items()})


def workflow_of(folder, interacts=False, **settings):
    for split, table in tables(interacts):
        pq.write_table(table, folder / f"{split}.parquet")
    data = Data(
        root=folder, **{split: (f"{split}.parquet",) for split in SPLITS}, labels=("click",),
        numbers=(Number(name="price"),), categories=tuple(Category(name=name) for name in ("user", "item", "seen")),
    )  # fmt: skip
    model = Model(kind="DeepFM", embedding_dim=4, args={"hidden": (16,)})
    found = Workflow(name="b", data=data, model=model, schedule=Schedule(batch_size=64, threads=1))
    return found.with_settings(settings)


def judged(workflow, **metrics):
    return baselines_of(workflow, {"split": "validation", "logloss": 0.5, **metrics}, lambda: False)


def logloss(chances, labels, weights):
    chances = np.asarray(chances)
    return -np.average(np.where(np.asarray(labels) == 1, np.log(chances), np.log(1 - chances)), weights=weights)


@pytest.mark.parametrize("weight", [None, "weight"])
def test_rates_are_those_of_a_plain_loop(tmp_path, weight):
    found = judged(workflow_of(tmp_path, **{"data.weight": weight}))["click"]
    train, held = (pq.read_table(tmp_path / f"{split}.parquet").to_pydict() for split in ("train", "validation"))
    weights = [np.asarray(of[weight]) if weight else np.ones(len(of["click"])) for of in (train, held)]
    base = ((weights[0] * train["click"]).sum() + 0.5) / (weights[0].sum() + 1)
    sums, counts = np.zeros(20), np.zeros(20)
    for user, click, w in zip(train["user"], train["click"], weights[0], strict=True):
        sums[user], counts[user] = sums[user] + w * click, counts[user] + w
    rates = (sums + PRIOR_ROWS * base) / (counts + PRIOR_ROWS)
    assert found["base_rate"] == pytest.approx(logloss([base] * 1000, held["click"], weights[1]), abs=1e-5)
    assert found["best_column"] == pytest.approx(logloss(rates[held["user"]], held["click"], weights[1]), abs=1e-5)
    assert (found["column"], found["rows"], found["of"]) == ("user", 4000, 4000)
    assert found["logistic_regression"] < found["base_rate"]


def test_each_label_is_judged_on_the_examples_that_have_it(tmp_path):
    tasks = (Task(label="buy", nulls=True),)
    settings = {"data.labels": ("click", "buy"), "data.tasks": tasks, "model.kind": "SharedBottom"}
    workflow = workflow_of(tmp_path, **settings)
    found = judged(workflow, logloss_click=0.4, logloss_buy=0.7)
    assert (found["click"]["model"], found["buy"]["model"]) == (0.4, 0.7)
    train, held = (
        [b for b in pq.read_table(tmp_path / f"{s}.parquet").column("buy").to_pylist() if b is not None]
        for s in ("train", "validation")
    )
    base = (sum(train) + 0.5) / (len(train) + 1)
    assert found["buy"]["base_rate"] == pytest.approx(logloss([base] * len(held), held, None), abs=1e-5)


def test_item_lists_of_sequences_change_no_baseline(tmp_path):
    """Next to a pooled list, whose values come before theirs."""
    workflow = workflow_of(tmp_path)
    with_past = {"data.sequences": [{"name": "past", "items": {"past": "item"}}], "model.kind": "MeanPooling"}
    assert judged(workflow.with_settings(with_past)) == judged(workflow)


def test_large_runs_and_interrupts_have_no_baselines(tmp_path, monkeypatch):
    workflow = workflow_of(tmp_path)
    assert baselines_of(workflow, {"split": "validation", "logloss": 0.5}, lambda: True) is None
    monkeypatch.setattr(measure, "MOST_ROWS", 3999)
    assert judged(workflow) is None


def test_a_sample_of_the_training_rows_is_enough(tmp_path, monkeypatch):
    whole = judged(workflow_of(tmp_path))["click"]
    monkeypatch.setattr(measure, "SAMPLE_ROWS", 1500)
    found = judged(workflow_of(tmp_path))["click"]
    assert (found["rows"], found["of"]) == (1334, 4000)
    assert found["best_column"] == pytest.approx(whole["best_column"], rel=0.1)
    assert found["best_column"] != whole["best_column"]


@pytest.mark.prove
def test_columns_of_long_lists_are_read_in_full(tmp_path):
    """The first short of the buffer says what the lists before it need, and not what those after it do."""
    workflow = workflow_of(tmp_path)
    names = ["user", *(f"list{n}" for n in range(6))]
    for split in SPLITS:
        table = pq.read_table(path := tmp_path / f"{split}.parquet")
        for n, name in enumerate(names[1:]):
            lists = [[user] * 4**n for user in table.column("user").to_pylist()]
            table = table.append_column(name, pa.array(lists, pa.list_(pa.int64())))
        pq.write_table(table, path)
    data = workflow.data.model_copy(update={"categories": tuple(Category(name=name) for name in names)})
    found = judged(workflow.model_copy(update={"data": data}))["click"]
    assert found["best_column"] < found["base_rate"]


def train(workflow, folder, *options):
    (folder / "w.json").write_text(workflow.model_dump_json())
    assert main([str(folder / "w.json"), "--serial", "--out", str(folder / "run"), *options]) == 0
    return json.loads((folder / "run" / "result.json").read_bytes())


def test_only_a_first_run_has_them_and_no_bit_else_differs(tmp_path, capsys):
    workflow = workflow_of(tmp_path)
    first = train(workflow, tmp_path)
    assert "for comparison, from 4,000 training rows: " in capsys.readouterr().out
    assert train(workflow, tmp_path, "--set", "schedule.epochs=2").get("baselines") is None
    without = train(workflow, tmp_path, "--fresh", "--no-baselines")
    assert "baselines" not in without
    assert without["fingerprint"] == first["fingerprint"]
    assert without["epochs"] == first["epochs"]
    assert math.isfinite(first["baselines"]["click"]["model"])


@pytest.mark.parametrize("learns", [True, False])
def test_a_model_that_loses_is_said_with_what_to_try(tmp_path, capsys, learns):
    rate = 0.02 if learns else 1e-7
    settings = {"optimizer.rows.lr": rate, "optimizer.dense.lr": rate, "schedule.epochs": 8 if learns else 1}
    result = train(workflow_of(tmp_path, interacts=learns, **settings), tmp_path)
    of, said = result["baselines"]["click"], capsys.readouterr().err
    best = min(of["base_rate"], of["best_column"], of["logistic_regression"])
    assert (of["model"] < best) == learns
    assert ("the model is no better than" in said) == (not learns)
    if not learns:
        assert said.index("1. regularize all rows") < said.index("a linear model") < said.index("lower rates")
        # What the advice sets are settings.
        settings = [word.partition("=")[::2] for word in said.split() if word.startswith("optimizer.")]
        assert len(settings) >= 4
        tried = Workflow.with_settings(workflow_of(tmp_path), {name: json_or_text(value) for name, value in settings})
        assert max(tried.optimizer.rows.lr, tried.optimizer.dense.lr) < rate


def json_or_text(value):
    try:
        return json.loads(value)
    except ValueError:
        return value


def test_without_validation_the_test_split_judges(tmp_path):
    workflow = workflow_of(tmp_path, **{"data.validation": ()})
    assert train(workflow, tmp_path)["baselines"]["click"]["split"] == "test"
    assert Path(tmp_path / "run").is_dir()
