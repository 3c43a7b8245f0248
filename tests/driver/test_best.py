"""The metric by which epochs are judged, any of any label, and the plateau that it may reach."""

import itertools
import json
import math
import re
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from support.runs.harness import make_driver, printed

from pipeline.driver.best import BestEpoch
from pipeline.monitor.history import History
from pipeline.optim.plateau import EpochVerdict, judge
from pipeline.records import Block, BlockResult, StageResult
from pipeline.settings.optimizer import Plateau

VALUES = {
    "auc": [0.5, 0.7, 0.6], "auc_click": [0.5, 0.7, 0.6], "auc_buy": [0.9, 0.8, 0.7], "ne_buy": [0.9, 0.8, 0.7],
    "gauc": [0.5, 0.6, 0.9],
}  # fmt: skip


def workflow_of(tmp_path, labels, metric, **plateau):
    judged = {"schedule.plateau": Plateau(metric=metric, **plateau), "metrics.group": "user"}
    return make_workflow(tmp_path, labels=labels).with_settings(judged)


@pytest.mark.parametrize(
    ("labels", "metric", "best"),
    [
        (("click",), "auc", 1), (("click",), "auc:click", 1), (("click", "buy"), "auc", 1), (("click",), "gauc", 2),
        (("click", "buy"), "auc:click", 1), (("click", "buy"), "auc:buy", 0), (("click", "buy"), "ne:buy", 2),
        (("click", "buy"), "auc_buy", 0), (("click",), "auc_click", 1),
    ],
)  # fmt: skip
def test_the_best_epoch_is_that_of_the_metric_and_label_named(tmp_path, labels, metric, best):
    decides = BestEpoch(workflow_of(tmp_path, labels, metric))
    history = SimpleNamespace(validated=lambda name: VALUES[name])
    assert decides.verdict(history).best == best


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("auc:none", "no label 'none'; there are click"),
        ("auc_clikc", "no label 'clikc'; did you mean 'click'?"),
        ("aucs", "no metric 'aucs'; did you mean 'auc'?"),
        ("loss_click", "did you mean 'logloss_click'?"),
        (
            "accuracy",
            "Metrics: auc, logloss, ne, gauc, recall, ndcg, mse, rmse, mae, r2 for the first label, or METRIC:LABEL",
        ),
    ],
)
def test_an_unknown_metric_is_refused_with_a_suggestion(tmp_path, metric, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        workflow_of(tmp_path, ("click",), metric)


def test_the_auc_within_groups_needs_groups(tmp_path):
    with pytest.raises(ValueError, match=r"needs metrics\.group"):
        make_workflow(tmp_path).with_settings({"schedule.plateau": Plateau(metric="gauc")})


def history_of(aucs):
    history = History()
    for epoch, auc in enumerate(aucs):
        block = Block(0, "validation", epoch, 0, 1, 0, 10, 10, 0, False)
        history.add(StageResult("train", 0, trained=BlockResult(block, 0.5, {"auc": auc})))
    return history


def decisions(decides, history):
    return decides.verdict(history), decides.stops(history), decides.is_last(history), decides.learning_rates(history)


def test_undefined_epochs_decide_nothing_also_after_a_resume(tmp_path):
    decides = BestEpoch(workflow_of(tmp_path, ("click",), "auc", lr_factor=0.5, stop_after=2))
    for aucs in itertools.product([0.5, 0.6, math.nan], repeat=4):
        history, resumed = history_of(aucs), History()
        resumed.load(json.loads(json.dumps(history.state())))
        verdict, stops, _, rates = found = decisions(decides, history)
        assert found == decisions(decides, resumed)
        without, stops_without, _, rates_without = decisions(decides, history_of(filter(math.isfinite, aucs)))
        assert (verdict.worse, verdict.in_a_row, stops, rates) == (
            without.worse, without.in_a_row, stops_without, rates_without,
        )  # fmt: skip
        assert verdict.best is None or math.isfinite(aucs[verdict.best])
        remarks = [decides.undefined(history_of(aucs[:number])) for number in range(5)]
        assert len(list(filter(None, remarks))) == any(map(math.isnan, aucs))


@pytest.mark.parametrize("until", [1, 9])
def test_validation_of_one_label_ends_no_training_and_is_said(tmp_path, until):
    root = write_data(tmp_path / "data")
    validation = pq.read_table(root / "validation.parquet")
    labels = pa.array([0] * len(validation), pa.int8())
    pq.write_table(validation.set_column(0, "click", labels), root / "validation.parquet")
    workflow = make_workflow(root, epochs=3, plateau=Plateau(stop_after=1))
    first = workflow.with_settings({"schedule.epochs": min(until, 3)})
    said = ""
    for each in (first, workflow)[until > 3 :]:
        driver = make_driver(each, tmp_path / "run")
        result = driver.run()
        said += printed(driver)
    assert [(e["epoch"], e["split"]) for e in result["epochs"]] == [
        *((n, "validation") for n in (1, 2, 3)), (3, "test"),
    ]  # fmt: skip
    assert said.count("auc of validation is undefined in epoch 1, since no two examples with a weight differ") == 1
    assert "schedule.plateau.metric to logloss" in said
    assert "ends early" not in said
    assert "undefined in every epoch: epoch 3 is tested" in said


@pytest.mark.parametrize("judged", [True, False])
def test_the_test_after_training_forgets_coming_keys(data_root, tmp_path, monkeypatch, judged):
    """Without a judged epoch, no other weights are opened before the test."""
    storage = {"device_policy": "foresight", "host_policy": "foresight"}
    workflow = make_workflow(data_root, epochs=4, plateau=Plateau(stop_after=1), storage=storage)
    driver = make_driver(workflow, tmp_path, device_rows=120, host_rows=24)

    def not_a_number(metric):
        return [math.nan] * sum(epoch["split"] == "validation" for epoch in driver.history.epochs)

    if not judged:
        monkeypatch.setattr(driver.history, "validated", not_a_number)
    driver.run()
    assert [epoch["split"] for epoch in driver.history.epochs].count("test") == 1


@pytest.mark.parametrize(
    ("metric", "min_gain", "values", "expected"),
    [
        ("auc", 1e-6, [], (None, 0, 0)), ("auc", 1e-6, [0.5], (0, 0, 0)), ("auc", 1e-6, [0.5, 0.6], (1, 0, 0)),
        ("auc", 1e-6, [0.6, 0.5], (0, 1, 1)), ("auc", 1e-6, [0.6, 0.5, 0.55], (0, 2, 2)),
        ("auc", 1e-6, [0.6, 0.5, 0.7], (2, 1, 0)), ("auc", 1e-6, [0.6, 0.6 + 1e-7], (0, 1, 1)),
        ("auc", 1e-6, [math.nan, 0.6, 0.5], (1, 1, 1)), ("auc", 1e-6, [math.nan] * 3, (None, 0, 0)),
        ("auc", 1e-6, [0.6, math.nan, math.nan], (0, 0, 0)), ("auc", 1e-6, [0.6, math.nan, 0.5], (0, 1, 1)),
        ("auc", 1e-6, [0.6, math.inf, 0.7], (2, 0, 0)), ("auc", 0.02, [0.6, 0.61, 0.615], (0, 2, 2)),
        ("logloss", 1e-6, [0.5, 0.4, 0.45], (1, 1, 1)), ("ne", 1e-6, [0.5, 0.4, 0.45], (1, 1, 1)),
    ],
)  # fmt: skip
def test_the_verdict_has_the_best_epoch_and_counts_worse_ones(metric, min_gain, values, expected):
    assert judge(metric, values, min_gain) == EpochVerdict(*expected)


def test_a_learning_rate_falls_to_its_floor_and_never_rises():
    plateau = Plateau(lr_factor=0.1, lr_floor=1e-5)
    assert EpochVerdict(worse=2).lr(1e-3, plateau) == pytest.approx(1e-5)
    assert EpochVerdict(worse=5).lr(1e-3, plateau) == 1e-5
    assert EpochVerdict(worse=5).lr(1e-6, plateau) == 1e-6
    assert EpochVerdict(worse=5).lr(1e-3, None) == 1e-3


def test_a_run_stops_after_so_many_worse_epochs_in_a_row():
    assert EpochVerdict(0, 2, 2).stops(Plateau(stop_after=2))
    assert not EpochVerdict(0, 3, 1).stops(Plateau(stop_after=2))
    assert not EpochVerdict(0, 9, 9).stops(Plateau())
    assert not EpochVerdict(0, 9, 9).stops(None)
