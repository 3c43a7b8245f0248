"""Labels that are any number: losses, metrics, scores, and the bits of plain training, alone and with other labels."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import make_workflow
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from support.data.parquet_files import rewritten, with_columns
from support.depth import some
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, run

from pipeline.api import export, open_servable, train
from pipeline.errors import PipelineError
from pipeline.metrics.evaluation import Evaluation
from pipeline.models import AITM, DNN, MMoE
from pipeline.models.losses import loss_of
from pipeline.settings.optimizer import Plateau
from pipeline.workflow import Task

SQUARED, HUBER = Task(label="dwell", loss="squared"), Task(label="dwell", loss="huber", delta=0.7, weight=0.5)
MASKED = Task(label="dwell", loss="squared", where="click", nulls=True)
ARGS = {"hidden": (6,), "tower": (4,), "experts": 2}


@pytest.fixture(scope="module")
def dwell_root(data_root, tmp_path_factory):
    """The files with a column `dwell`, a number that depends on the other columns."""

    def with_dwell(table):
        x, click = np.array(table["x0"], np.float64), np.array(table["click"])
        return table.append_column("dwell", pa.array(3 + 2 * x + click))

    return rewritten(data_root, tmp_path_factory.mktemp("dwell"), with_dwell)


def make(root, *tasks, labels=("click", "dwell"), **changes):
    several = {"kind": MMoE, "args": ARGS} if len(labels) > 1 else {"kind": DNN, "args": {"hidden": (6,)}}
    workflow = make_workflow(root, **{"labels": labels, "epochs": 1} | several | changes)
    return workflow.with_settings({"data.tasks": tasks})


def with_nulls(table):
    dwell = [None if n % 5 == 3 else value for n, value in enumerate(table["dwell"].to_pylist())]
    return with_columns(table, dwell=pa.array(dwell, pa.float64()))


@pytest.mark.parametrize("labels", [("dwell",), ("click", "dwell")], ids=["alone", "second"])
@pytest.mark.parametrize("task", some([SQUARED, HUBER], HUBER))
@pytest.mark.parametrize("weight", some([None, "importance"], "importance"))
def test_tiers_change_no_bit_of_number_labels(labels, task, weight, dwell_root):
    workflow = make(dwell_root, task, labels=labels, weight=weight)
    expected = Reference(workflow).train().fingerprint()
    assert run(workflow, **THREE_TIERS)["fingerprint"] == expected
    other = workflow.with_settings({"schedule.block_batches": 5, "schedule.look_ahead": 1})
    assert run(other)["fingerprint"] == expected


def test_a_number_label_may_be_masked(dwell_root, tmp_path):
    workflow = make(rewritten(dwell_root, tmp_path, with_nulls), MASKED, weight="importance")
    result = run(workflow, **THREE_TIERS)
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    last = result["epochs"][-1]
    table = pq.read_table(next(tmp_path.glob("test*.parquet")))
    has = np.array(table["click"]) * ~np.array(table["dwell"].is_null())
    assert last["examples_dwell"] == has.sum() < last["examples"]


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(-9, 9, width=32)] * 2, st.floats(0.125, 4, width=32)), min_size=1, max_size=20),
    st.floats(0.1, 5),
)
def test_losses_and_gradients_are_their_equations(rows, delta):
    output, label, weight = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    error = output - label
    expected = {
        "squared": (error**2, 2 * error),
        "huber": (
            np.where(abs(error) <= delta, error**2 / 2, delta * (abs(error) - delta / 2)),
            np.clip(error, -delta, delta),
        ),
    }
    for loss, (losses, slopes) in expected.items():
        tensors = [torch.tensor(column)[:, None] for column in (output, label, weight)]
        tensors[0].requires_grad_()
        found = loss_of([Task(label="dwell", loss=loss, delta=delta)])(*tensors)
        found.sum().backward()
        assert found.tolist() == pytest.approx([np.average(losses, weights=weight)], rel=1e-9, abs=1e-12)
        of_each = slopes * weight / weight.sum()
        assert tensors[0].grad[:, 0].numpy() == pytest.approx(of_each, rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(-99, 99, width=32)] * 2, st.sampled_from([0, 0.5, 1, 3])), min_size=1, max_size=60),
    st.sampled_from([1, 7, 100]),
)
@example([(0.0, 0.0, 0.5), (0.0, 1.7113483670322001e-28, 0.5)], 1)
def test_errors_equal_scikit_learn(rows, batch):
    output, label, weight = (np.array(column, np.float32) for column in zip(*rows, strict=True))
    evaluation = Evaluation(("dwell",), numbers=("dwell",))
    for begin in range(0, len(rows), batch):
        of = slice(begin, begin + batch)
        evaluation.add(output[of, None], label[of, None], weight[of])
    found = evaluation.result()
    assert [*found] == ["mse", "rmse", "mae", "r2", "examples"]
    if not weight.any():
        assert all(math.isnan(found[name]) for name in ("mse", "rmse", "mae", "r2"))
        return
    # In float32, squares of small errors would be 0.
    label, output = label.astype(np.float64), output.astype(np.float64)
    mse = mean_squared_error(label, output, sample_weight=weight)
    assert found["mse"] == pytest.approx(mse, rel=1e-6, abs=1e-12)
    assert found["rmse"] == pytest.approx(math.sqrt(mse), rel=1e-6, abs=1e-9)
    assert found["mae"] == pytest.approx(mean_absolute_error(label, output, sample_weight=weight), rel=1e-6, abs=1e-12)
    counted = label[weight > 0]
    if np.ptp(counted) == 0:
        assert math.isnan(found["r2"])
    elif np.ptp(counted) > 1e-3 * abs(counted).max():
        assert found["r2"] == pytest.approx(r2_score(label, output, sample_weight=weight), rel=1e-6, abs=1e-6)


def test_metrics_of_both_kinds_are_reported_by_label(dwell_root, tmp_path):
    workflow = make(dwell_root, SQUARED).with_settings({"schedule.plateau": Plateau(metric="rmse:dwell")})
    lines = []
    with train(workflow, tmp_path, serial=True, verbose=False) as opened:
        lines = opened.metrics.to_pylist()
        result = opened.result
    assert {"auc", "auc_click", "mse_dwell", "r2_dwell"} <= {*lines[0]}
    assert not {"auc_dwell", "calibration_dwell", "mse_click", "mse"} & {*lines[0]}
    assert result["auc"] == result["epochs"][-1]["auc_click"]


def test_the_best_epoch_of_a_number_label_has_the_least_error(dwell_root, tmp_path):
    workflow = make(dwell_root, SQUARED, labels=("dwell",), epochs=3)
    with train(workflow, tmp_path, serial=True, verbose=False) as opened:
        (best,) = [one for one in opened.commits.to_pylist() if one["name"] == "best"]
        errors = [one["mse"] for one in opened.metrics.to_pylist() if one["split"] == "validation"]
        assert opened.result["auc"] is None
    assert best["epoch"] == int(np.argmin(errors)) + 1


def test_scores_of_a_number_label_are_its_values(dwell_root, tmp_path):
    """Of the run, of a servable in torch and of one in ONNX Runtime, and those of `evaluate`."""
    with train(make(dwell_root, SQUARED), tmp_path / "run", serial=True, verbose=False) as opened:
        table = pq.read_table(next(dwell_root.glob("test*.parquet")))
        scores, metrics = opened.predict(table), opened.evaluate(table)
    assert scores.column_names == ["click.logit", "click.probability", "dwell.value"]
    error = np.array(scores["dwell.value"], np.float64) - np.array(table["dwell"])
    assert metrics["mse_dwell"] == pytest.approx(np.mean(error**2), rel=1e-5)
    export(tmp_path / "run", tmp_path / "servable", negatives=0.5)
    for backend in ("torch", "onnx"):
        with open_servable(tmp_path / "servable", backend=backend) as servable:
            found = servable.predict(table)
        assert found.column_names == scores.column_names
        assert np.allclose(found["dwell.value"], scores["dwell.value"], atol=1e-5)
        assert np.allclose(found["click.logit"], np.array(scores["click.logit"]) + math.log(0.5), atol=1e-5)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 1e39])
def test_a_number_label_must_be_finite(value, dwell_root, tmp_path):
    def bad(table):
        return with_columns(table, dwell=pa.array([value, *table["dwell"].to_pylist()[1:]], pa.float64()))

    rewritten(dwell_root, tmp_path, bad)
    with pytest.raises(PipelineError, match=r"'dwell' .*must be a finite number and not null"):
        run(make(tmp_path, SQUARED, labels=("dwell",)))


def test_labels_that_are_no_numbers_must_still_be_0_or_1(dwell_root):
    with pytest.raises(PipelineError, match=r"'dwell' .*must be 0 or 1"):
        run(make(dwell_root, labels=("click", "dwell")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedule.plateau": Plateau()}, "metric is 'auc' of 'dwell', whose loss is 'squared'; its metrics are mse"),
        ({"schedule.plateau": Plateau(metric="mse:click"), "data.labels": ("click", "dwell")}, "are auc, logloss, ne"),
        (
            {"data.labels": ("dwell", "click"), "data.tasks": (SQUARED, Task(label="click", where="dwell"))},
            "where is 'dwell', which may be any number",
        ),
    ],
)
def test_settings_that_do_not_fit_a_number_label_are_refused(changes, said, dwell_root):
    workflow = make(dwell_root, SQUARED, labels=("dwell",))
    with pytest.raises(ValueError, match=said):
        workflow.with_settings(changes)


def test_a_model_with_a_loss_takes_no_number_labels(dwell_root, tmp_path):
    workflow = make(dwell_root, SQUARED, kind=AITM, args={"hidden": (6,), "tower": (4,)})
    with pytest.raises(ValueError, match="AITM has a loss, which takes the place of the loss 'squared' of 'dwell'"):
        train(workflow, tmp_path, serial=True, verbose=False)
