"""Runs over spans in time: the bits of a plain trainer, however the days came."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CATEGORIES, NARROW
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from support.data.days import days_workflow, write_days
from support.depth import examples
from support.faults.kills import dying
from support.oracle.optimizers import EXACT
from support.oracle.reference import Reference
from support.runs.harness import make_driver

from pipeline.models import LR
from pipeline.settings.optimizer import DenseAdam, KStep, Optimizer
from pipeline.storage.policies import POLICIES
from pipeline.workflow import Category, Workflow

THREE_TIERS = {"device_rows": 130, "host_rows": 24, "chunk_rows": 4}


def one_by_one(workflow: Workflow, calls: list[list[Path]], run_dir: Path, **sizes: int) -> dict[str, Any]:
    """Result after the last of these calls, each of which brings some files."""
    first = workflow.with_settings({"data.train": tuple(str(file) for file in calls[0])})
    result = make_driver(first, run_dir, **sizes).run()
    for files in calls[1:]:
        result = make_driver(first, run_dir, extend=tuple(map(str, files)), **sizes).run()
    assert result is not None
    return result


def test_a_run_over_days_equals_the_plain_trainer(tmp_path: Path) -> None:
    write_days(tmp_path, [20, 13, 0, 31])
    workflow = days_workflow(tmp_path)
    result = make_driver(workflow, tmp_path / "run", **THREE_TIERS).run()
    reference = Reference(workflow).train()
    assert result is not None
    assert result["fingerprint"] == reference.fingerprint()
    assert [(e["split"], e["span"]) for e in result["epochs"]] == [("span", f"2026-11-2{d}") for d in (0, 1, 3)]
    for entry, (name, scores, labels) in zip(result["epochs"], reference.scores, strict=True):
        assert name == f"span {entry['span']}"
        assert entry["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_days_one_by_one_equal_one_run_over_all(tmp_path: Path) -> None:
    files = write_days(tmp_path, [20, 13, 0, 31])
    workflow = days_workflow(tmp_path)
    result = one_by_one(workflow, [[file] for file in files], tmp_path / "run", **THREE_TIERS)
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    assert len(result["epochs"]) == 3


def test_validation_and_test_follow_the_spans(tmp_path: Path) -> None:
    files = write_days(tmp_path, [20, 13, 18])
    for name in ("validation", "test"):
        files[0].with_name(f"{name}.parquet").write_bytes(files[2].read_bytes())
    workflow = days_workflow(tmp_path).with_settings({
        "data.validation": ("validation.parquet",), "data.test": ("test.parquet",)
    })  # fmt: skip
    result = one_by_one(workflow, [files[:2], files[2:]], tmp_path / "run", **THREE_TIERS)
    assert [e["split"] for e in result["epochs"]] == 2 * ["span", "validation"] + ["test", "span", "validation", "test"]
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    without = workflow.with_settings({"data.test": ()})
    one_by_one(without, [files[:2], files[2:]], tmp_path / "later", **THREE_TIERS)
    later = one_by_one(workflow, [files], tmp_path / "later", **THREE_TIERS)
    assert later["epochs"][-1] == result["epochs"][-1]


def test_labels_that_come_late_are_waited_for(tmp_path: Path) -> None:
    files = write_days(tmp_path, [20, 13, 0, 31, 9])
    workflow = days_workflow(tmp_path, label_delay="36 h")
    result = one_by_one(workflow, [[file] for file in files], tmp_path / "run", **THREE_TIERS)
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    # Days 0 and 1 end 36 hours and more before the last day does, day 3 does not.
    assert result["examples"] == 33
    scores = [(e["span"], e["trained"]) for e in result["epochs"]]
    assert scores == [("2026-11-20", 0), ("2026-11-21", 20)], "each by the model of the days before it, once it is due"


def test_a_day_without_scores_whose_labels_are_late_is_kept(tmp_path: Path) -> None:
    files = write_days(tmp_path, [20, 13, 31])
    workflow = days_workflow(tmp_path, label_delay="2 d", metrics={"score_spans": False})
    result = one_by_one(workflow, [[file] for file in files], tmp_path / "run", **THREE_TIERS)
    assert (result["examples"], result["epochs"]) == (20, [])
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


def test_merges_of_k_steps_end_with_a_span(tmp_path: Path) -> None:
    files = write_days(tmp_path, [20, 13, 31])
    workflow = days_workflow(tmp_path).model_copy(
        update={"optimizer": Optimizer(dense=DenseAdam(lr=0.01, eps=1e-4), merge=KStep(k=3))}
    )
    found = {
        one_by_one(workflow, calls, tmp_path / f"run-{n}", **THREE_TIERS)["fingerprint"]
        for n, calls in enumerate([[files], [files[:1], files[1:]], [[file] for file in files]])
    }
    assert len(found) == 1


@st.composite
def streams(draw: st.DrawFn) -> dict[str, Any]:
    """Days, a workflow, and calls that bring the days and may die; the sizes of tiers differ from call to call."""
    sizes = [draw(st.integers(1, 25)), *draw(st.lists(st.sampled_from([0, 1, 2, 5, 13, 25]), max_size=4))]
    changes = {
        "batch_size": draw(st.integers(1, 9)),
        "epochs": draw(st.sampled_from([1, 1, 2])),
        "shuffle_window": draw(st.sampled_from([0, 7, 64])),
        "categories": draw(st.sampled_from([CATEGORIES, NARROW])),
        "label_delay": draw(st.sampled_from([None, "12 h", "1 d", "2 d"])),
    }
    largest = 9 * 4 * len(CATEGORIES) + 2
    calls = []
    begin = 0
    while begin < len(sizes):
        end = draw(st.integers(begin + 1, len(sizes)))
        calls.append({
            "days": (begin, end),
            "dies_at": draw(st.lists(st.integers(1, 60), max_size=2)),
            "settings": {
                "schedule.block_batches": draw(st.sampled_from([1, 2, 3, 16])),
                "schedule.look_ahead": draw(st.integers(1, 4)),
                "commit.every_blocks": draw(st.sampled_from([None, 1, 2])),
                "storage.device_policy": draw(st.sampled_from([*POLICIES])),
                "storage.host_policy": draw(st.sampled_from([*POLICIES])),
                "metrics.score_spans": draw(st.booleans()),
            },
            "sizes": {
                "device_rows": draw(st.integers(largest, 2 * largest)),
                "host_rows": draw(st.sampled_from([0, 1, 9, 40])),
                "ring_rows": largest * draw(st.integers(1, 12)),
            },
        })  # fmt: skip
        begin = end
    return {
        "sizes": sizes, "seed": draw(st.integers(0, 9)), "row_group_size": draw(st.sampled_from([3, 8, 100])),
        "changes": changes, "optimizer": draw(st.sampled_from([*EXACT.values()])), "calls": calls,
    }  # fmt: skip


@given(streams())
@examples(6, 60)
def test_days_with_kills_and_other_tiers_equal_the_plain_trainer(case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        files = write_days(root, case["sizes"], case["seed"], case["row_group_size"])
        whole = days_workflow(root, **case["changes"]).model_copy(update={"optimizer": case["optimizer"]})
        for number, call in enumerate(case["calls"]):
            begin, end = call["days"]
            first_files = tuple(file.name for file in files[: case["calls"][0]["days"][1]])
            workflow = whole.with_settings({**call["settings"], "data.train": first_files})
            extend = tuple(str(file) for file in files[begin:end]) if number else ()

            def work(workflow=workflow, extend=extend, call=call) -> dict[str, Any] | None:
                run_dir = Path(folder) / "run"
                return make_driver(workflow, run_dir, extend=extend, chunk_rows=4, **call["sizes"]).run()

            for dies_at in call["dies_at"]:
                dying(dies_at, work)
            result = work()
        assert result is not None
        assert result["fingerprint"] == Reference(whole).train().fingerprint()


def test_nothing_of_a_span_is_trained_before_it_was_scored(tmp_path: Path) -> None:
    """Keys that give their day's labels away: whoever has seen one label of the day predicts all of them."""
    files = write_days(tmp_path, [40, 40, 40])
    for day, file in enumerate(files):
        table = pq.read_table(file)
        given_away = pa.array([f"{day}-{click}" for click in table["click"].to_pylist()])
        pq.write_table(table.append_column("leak", given_away), file, row_group_size=8)
    model = {"kind": LR, "args": {}, "embedding_dim": 0}
    workflow = days_workflow(
        tmp_path,
        categories=(Category(name="leak"),),
        batch_size=4,
        look_ahead=4,
        metrics={"progressive": True},
        **model,
    )
    workflow = workflow.with_settings({"data.numbers": ()})
    result = make_driver(workflow, tmp_path / "run", **THREE_TIERS).run()
    assert result is not None
    of_split = {split: [e["auc"] for e in result["epochs"] if e["split"] == split] for split in ("span", "train")}
    assert of_split["span"] == [0.5] * 3
    assert min(of_split["train"]) > 0.9, "the keys do not give the labels away"
