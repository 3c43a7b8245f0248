"""Metrics of whole runs: within groups, and of the training split as it is trained on. Nothing else may change."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_workflow
from sklearn.metrics import log_loss, roc_auc_score
from support.depth import some
from support.faults.killed_after_commit import kill_after
from support.oracle.reference import Reference
from support.runs.crew_threads import crew_driver, train
from support.runs.harness import THREE_TIERS, make_driver, printed, run
from torch import nn

from pipeline import verify
from pipeline.commits.manifest import Commits
from pipeline.driver.loop import DueCommit
from pipeline.metrics import auc
from pipeline.models import MMoE
from pipeline.storage.files import Files
from pipeline.workflow import Metrics

BOTH = Metrics(group="user", progressive=True)


class Dropping(nn.Module):
    """A linear model with dropout."""

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(num_fields * embedding_dim + num_numbers, 1)

    def forward(self, numbers, embeddings, first_order):
        return self.linear(self.dropout(torch.cat([numbers, embeddings.flatten(1)], 1))).squeeze(1)


def workflow_of(data_root, metrics=BOTH, **changes):
    return make_workflow(data_root, weight="importance", **changes).model_copy(update={"metrics": metrics})


@pytest.fixture(scope="module")
def expected(data_root):
    return run(workflow_of(data_root), **THREE_TIERS)


class Keeping(Reference):
    """Keeps what the training forward passes gave."""

    def __init__(self, workflow):
        super().__init__(workflow)
        self.seen = []

    def forward(self, batch, create):
        found = super().forward(batch, create)
        if create:
            self.seen += zip(found[0].tolist(), batch, strict=True)
        return found


def of_scikit_learn(seen):
    logits, examples = zip(*seen, strict=True)
    score = 1 / (1 + np.exp(-np.array(logits)))
    label, weight = np.array([e["click"] for e in examples]), np.array([e["importance"] for e in examples])
    users = np.array([-1 if e["user"] is None else e["user"] for e in examples])
    loss, mean = log_loss(label, score, sample_weight=weight), np.average(label, weights=weight)
    area = counted = 0.0
    for user in set(users.tolist()):
        of = users == user
        if len(set(label[of])) == 2:
            area += weight[of].sum() * roc_auc_score(label[of], np.array(logits)[of], sample_weight=weight[of])
            counted += weight[of].sum()
    return {
        "auc": roc_auc_score(label, logits, sample_weight=weight),
        "logloss": loss,
        "ne": loss / -(mean * math.log(mean) + (1 - mean) * math.log(1 - mean)),
        "calibration": np.average(score, weights=weight) / mean,
        "gauc": area / counted,
        "gauc_share": counted / weight.sum(),
        "examples": len(label),
    }


@pytest.mark.parametrize("kind", some([None, Dropping], Dropping))
def test_progressive_metrics_are_of_the_training_forward_passes(data_root, kind):
    workflow = workflow_of(data_root, **({"kind": kind, "args": {}} if kind else {}))
    reference = Keeping(workflow).train()
    trained = [e for e in run(workflow, **THREE_TIERS)["epochs"] if e["split"] == "train"]
    assert [e["epoch"] for e in trained] == [1, 2]
    for epoch, entry in enumerate(trained):
        found = of_scikit_learn(reference.seen[90 * epoch : 90 * epoch + 90])
        assert {name: entry[name] for name in found} == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("kind", some([None, Dropping], Dropping))
def test_reported_metrics_never_change_what_is_learned(data_root, kind):
    model = {"kind": kind, "args": {}} if kind else {}
    plain = run(workflow_of(data_root, Metrics(), **model), **THREE_TIERS)
    for metrics in (BOTH, Metrics(group="country"), Metrics(progressive=True)):
        result = run(workflow_of(data_root, metrics, **model), **THREE_TIERS)
        assert result["fingerprint"] == plain["fingerprint"]
        evaluated = [{k: v for k, v in e.items() if k in plain["epochs"][0]} for e in result["epochs"]]
        assert [e for e in evaluated if e["split"] != "train"] == plain["epochs"]
        assert (result["auc"], result["split"]) == (plain["auc"], "test")
        assert all(("gauc" in epoch) == (metrics.group is not None) for epoch in result["epochs"])


@pytest.mark.parametrize("block_batches", some([1, 5, 16], 5))
def test_blocks_commits_and_dask_never_change_the_metrics(data_root, expected, client, block_batches):
    workflow = workflow_of(data_root, block_batches=block_batches).with_settings({"commit.every_blocks": 1})
    for executor in (None, client):
        assert run(workflow, executor, **THREE_TIERS)["epochs"] == expected["epochs"]


@pytest.mark.parametrize("after", some([1, 2, 4], 2))
@pytest.mark.parametrize("before", some([BOTH, Metrics()], BOTH))
def test_a_resumed_epoch_counts_the_rest_and_says_from_where(data_root, before, after, tmp_path, monkeypatch):
    """Whatever was reported before; a kill between two epochs leaves nothing out."""
    often = workflow_of(data_root, before).with_settings({"commit.every_blocks": 2})
    kill_after(after, often, tmp_path, monkeypatch)
    driver = make_driver(often.model_copy(update={"metrics": BOTH}), tmp_path, **THREE_TIERS)
    result = driver.run()
    reference = Keeping(workflow_of(data_root)).train()
    assert result["fingerprint"] == reference.fingerprint()
    trained = {e["epoch"]: e for e in result["epochs"] if e["split"] == "train"}
    said = [line for line in printed(driver).splitlines() if "where the run was resumed" in line]
    if after < 4:
        first = 24 * after
        found = of_scikit_learn(reference.seen[first:90])
        assert {name: trained[1][name] for name in found} == pytest.approx(found, rel=1e-6)
        assert trained[1]["from_example"] == first + 1
        assert [f"; {90 - first} examples, from example {first + 1} on, " in line for line in said] == [True]
    found = of_scikit_learn(reference.seen[90:])
    assert {name: trained[2][name] for name in found} == pytest.approx(found, rel=1e-6)
    assert "from_example" not in trained[2]
    assert len(said) == (after < 4)


def test_sums_that_an_earlier_version_kept_are_ignored(data_root, expected, tmp_path, monkeypatch, capsys):
    """Their file is no error, and is deleted when the run goes on."""
    workflow = workflow_of(data_root).with_settings({"commit.every_blocks": 3})
    kill_after(1, workflow, tmp_path, monkeypatch)
    commits = Commits(tmp_path, Files(), 2)
    (kept,) = commits.all()
    sums = {"version": 1, "workers": 1, "sums": 3, "words": [2], "checksum": "0" * 16, "group": "user"}
    commits.publish(replace(kept, state=kept.state | {"sums": sums | {"progressive": True}}))
    (file := commits.folder / "000001.sums").write_bytes(bytes(40))
    assert verify.main([str(tmp_path)]) == 0
    assert "000001.sums" not in "".join(capsys.readouterr())
    result = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    assert result["fingerprint"] == expected["fingerprint"]
    assert not file.exists()


@pytest.mark.parametrize("world", some([2, 3], 3))
def test_workers_count_the_rest_of_a_resumed_epoch(data_root, tmp_path, world):
    """Its examples are those of one worker, and later epochs count all."""
    workflow = workflow_of(data_root, labels=("click", "bought"), kind=MMoE, args={"hidden": (6,), "tower": (4,)})
    with crew_driver(workflow, tmp_path, world, **THREE_TIERS) as driver:
        blocks = list(driver.agenda.blocks(2))
        assert driver.crew.run(blocks[:4], 2, driver.history.add) is None
        driver.commit(DueCommit(blocks[4]))
    with crew_driver(workflow, tmp_path, world, **THREE_TIERS) as driver:
        train(driver)
        trained = [epoch for epoch in driver.history.epochs if epoch["split"] == "train"]
    assert [(e["examples"], e.get("from_example")) for e in trained] == [(90 - 48, 49), (90, None)]


@pytest.mark.parametrize("world", some([0, 1, 3], 3))
def test_a_run_with_more_scores_than_are_kept_says_how_exact_it_is(data_root, expected, tmp_path, world, monkeypatch):
    monkeypatch.setattr(auc, "EXACT_SCORES", 4)
    monkeypatch.setattr(auc, "MOST_BINS", 4)
    with crew_driver(workflow_of(data_root), tmp_path, world, **THREE_TIERS) as driver:
        train(driver)
        found, said = driver.history.epochs, printed(driver)
    for entry, exact in zip(found, expected["epochs"], strict=True):
        assert 1e-6 < entry["auc_bound"] < 0.5
        assert entry["auc"] == pytest.approx(exact["auc"], abs=entry["auc_bound"] + 1e-5)
        assert f"auc {entry['auc']:.5f}, auc_bound {entry['auc_bound']:.1e}, " in said
