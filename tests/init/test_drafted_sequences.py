"""Lists that hold values of a category become sequences of the drafted workflow."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.drafts import drafted, write_logs
from support.data.preparations import prepare
from support.runs.harness import run

from pipeline.init.trial import candidates
from pipeline.models import DIN, DeepFM, SharedBottom
from pipeline.prepare.draft import ATTENTIVE, Draft, DraftedCategory, DraftedSequence
from pipeline.workflow import Sequence, load

ROWS = 900
ITEMS = {"hist_items": "item_id", "hist_categories": "category"}


def log(rows=ROWS, seed=0):
    """Lists of items and of their categories, of other lengths than those of views, and a list with nulls within."""
    rng = np.random.default_rng(seed)
    items, views = ([rng.integers(0, 30, n).tolist() for n in rng.integers(0, 6, rows)] for _ in range(2))
    return pa.table({
        "click": rng.integers(0, 2, rows).astype(np.int8),
        "item_id": rng.integers(0, 30, rows),
        "category": [f"c{item}" for item in rng.integers(0, 5, rows)],
        "hist_items": pa.array(items, pa.list_(pa.int64())),
        "hist_categories": [[f"c{item % 5}" for item in one] for one in items],
        "viewed_items": pa.array([one or None for one in views], pa.list_(pa.int64())),
        "item_list": pa.array([[n % 30, None] for n in range(rows)], pa.list_(pa.int64())),
    })  # fmt: skip


def sequenced(folder, *options, splits=("train", "validation"), **more):
    """The workflow of the log, with the columns `more` of each split, in one file or two."""
    for seed, split in enumerate(splits):
        table = log(seed=seed)
        for name, values in more.items():
            table = table.append_column(name, pa.array(values[seed]))
        write_logs(folder, **{split: table})
    return drafted(folder, *options)


@pytest.mark.parametrize("splits", [("train", "validation"), ("all",)], ids=len)
def test_lists_of_equal_lengths_become_one_sequence(tmp_path, capsys, splits):
    """Also if `prepare` divides the rows of one file."""
    workflow = sequenced(tmp_path, splits=splits)
    views = Sequence(name="history_2", items={"viewed_items": "item_id"})
    assert workflow.data.sequences == (Sequence(name="history", items=ITEMS), views)
    fields = {category.name: (category.table_name, category.pooling) for category in workflow.data.categories}
    assert {name: fields[name] for name in fields if name != "category"} == {
        "item_id": ("item_id", "sum"), "item_list": ("item_id", "mean")
    }  # fmt: skip
    assert workflow.model.kind is DIN
    assert "for their mean alone, --as hist_items=list --as hist_categories=list\n" in capsys.readouterr().out


def test_a_list_that_the_user_names_is_pooled(tmp_path):
    workflow = sequenced(tmp_path, *(f"--as={name}=list" for name in (*ITEMS, "viewed_items")))
    assert (workflow.data.sequences, workflow.model.kind) == ((), DeepFM)
    assert {c.name for c in workflow.data.categories if c.pooling == "mean"} == {*ITEMS, "viewed_items", "item_list"}


def test_a_list_with_the_row_s_own_value_is_pooled(tmp_path):
    """All items of a set, say, of which the row is about one: it is no history."""
    sets = [[[item, (item + 7) % 30] for item in log(seed=seed)["item_id"].to_pylist()] for seed in (0, 1)]
    workflow = sequenced(tmp_path, item_set=sets)
    assert not any("item_set" in sequence.items for sequence in workflow.data.sequences)
    assert {"item_set", "item_id"} <= {c.name for c in workflow.data.categories if c.table_name == "item_id"}


def test_models_of_several_labels_pool_lists(tmp_path):
    workflow = sequenced(tmp_path, "--label", "click", "--label", "buy", buy=[np.arange(ROWS) % 2] * 2)
    assert (workflow.data.sequences, workflow.model.kind) == ((), SharedBottom)
    assert (workflow.data.labels, workflow.model.args["num_labels"]) == (("click", "buy"), 2)
    assert {*ITEMS} < {category.name for category in workflow.data.categories}


def test_a_drafted_sequence_trains(tmp_path):
    workflow = sequenced(tmp_path).with_settings({
        "model.args": {"hidden": (4,), "attention": (4,)}, "schedule.epochs": 1, "schedule.plateau": None,
    })  # fmt: skip
    assert 0 < run(workflow)["logloss"] < 1


def test_attention_is_tried_where_there_are_sequences():
    categories = [*map(DraftedCategory, ("item_id", "hist_items"))]
    draft = Draft("d", "", "", {}, ["click"], [], categories, "", [], 100, {"click": 0.5})
    assert ATTENTIVE not in [candidate.recipe for candidate in candidates(draft)]
    tried = candidates(replace(draft, sequences=[DraftedSequence("history", {"hist_items": "item_id"})]))
    assert [candidate.kind for candidate in tried] == ["LR", "LR", "DeepFM", "DeepFM", "DIN", "DIN"]


@pytest.mark.parametrize("nulls", [False, True])
def test_prepared_histories_become_a_sequence_unless_they_have_nulls(tmp_path, nulls):
    rng, rows = np.random.default_rng(0), 400
    events = {
        "user": rng.integers(0, 40, rows), "at": np.arange(rows), "click": rng.integers(0, 2, rows),
        "item": pa.array(rng.integers(0, 20, rows), mask=np.arange(rows) == 7 if nulls else None),
        "kind": rng.integers(0, 3, rows),
    }  # fmt: skip
    pq.write_table(pa.table(events), tmp_path / "events.parquet")
    columns = ("--user", "user", "--time", "at", "--items", "item", "kind", "--last", 120, "--split", "last")
    schema = ("--schema", "click:label", "user:category", "item:category", "kind:category")
    assert prepare("sequences", tmp_path / "events.parquet", tmp_path / "out", *columns, *schema) == 0
    workflow = load(tmp_path / "out" / "_workflow.py")
    items = {"hist_kind": "kind"} if nulls else {"hist_item": "item", "hist_kind": "kind"}
    assert workflow.data.sequences == (Sequence(name="history", items=items, max_length=120),)
    assert [c.name for c in workflow.data.categories if c.pooling == "mean"] == ["hist_item"] * nulls
    result = run(workflow.with_settings({"model.args": {"hidden": (4,), "attention": (4,)}, "schedule.epochs": 1}))
    assert 0 < result["logloss"] < 1
