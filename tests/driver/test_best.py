"""The metric by which epochs are judged: any of any label."""

import re
from types import SimpleNamespace

import pytest
from conftest import make_workflow

from pipeline.driver.best import BestEpoch
from pipeline.optimizer import Plateau
from pipeline.workflow import Metrics, Workflow

VALUES = {
    "auc": [0.5, 0.7, 0.6], "auc_click": [0.5, 0.7, 0.6], "auc_buy": [0.9, 0.8, 0.7], "ne_buy": [0.9, 0.8, 0.7],
    "gauc": [0.5, 0.6, 0.9],
}  # fmt: skip


def workflow_of(tmp_path, labels, metric):
    found = make_workflow(tmp_path)
    data = found.data.model_copy(update={"labels": labels})
    schedule = found.schedule.model_copy(update={"plateau": Plateau(metric=metric)})
    return Workflow.model_validate(dict(found) | {"data": data, "schedule": schedule, "metrics": Metrics(group="user")})


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
        ("accuracy", "Metrics: auc, logloss, ne, gauc of the first label, METRIC:LABEL of another"),
    ],
)
def test_a_metric_that_does_not_exist_is_refused_with_what_is_meant(tmp_path, metric, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        workflow_of(tmp_path, ("click",), metric)


def test_the_auc_within_groups_needs_groups(tmp_path):
    found = make_workflow(tmp_path)
    schedule = found.schedule.model_copy(update={"plateau": Plateau(metric="gauc")})
    with pytest.raises(ValueError, match=r"needs metrics\.group"):
        Workflow.model_validate(dict(found) | {"schedule": schedule})
