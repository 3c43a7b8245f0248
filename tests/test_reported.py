"""Metrics of whole runs: within groups, and of the training split as it is trained on. Nothing else may change."""

import math
import shutil

import numpy as np
import pytest
import torch
from conftest import make_workflow
from sklearn.metrics import log_loss, roc_auc_score
from support.depth import some
from support.faults.killed_after_commit import kill_after
from support.oracle.reference import Reference
from support.runs.crew_threads import crew_driver, train
from support.runs.harness import make_driver, printed, run
from torch import nn

from pipeline import verify
from pipeline.driver.loop import DueCommit
from pipeline.models import MMoE
from pipeline.storage.files import Damaged
from pipeline.workflow import Commit, Metrics

SIZES = {"device_rows": 130, "host_rows": 24, "chunk_rows": 4}
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
    return run(workflow_of(data_root), **SIZES)


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
    trained = [e for e in run(workflow, **SIZES)["epochs"] if e["split"] == "train"]
    assert [e["epoch"] for e in trained] == [1, 2]
    for epoch, entry in enumerate(trained):
        found = of_scikit_learn(reference.seen[90 * epoch : 90 * epoch + 90])
        assert {name: entry[name] for name in found} == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("kind", some([None, Dropping], Dropping))
def test_reported_metrics_never_change_what_is_learned(data_root, kind):
    model = {"kind": kind, "args": {}} if kind else {}
    plain = run(workflow_of(data_root, Metrics(), **model), **SIZES)
    for metrics in (BOTH, Metrics(group="country"), Metrics(progressive=True)):
        result = run(workflow_of(data_root, metrics, **model), **SIZES)
        assert result["fingerprint"] == plain["fingerprint"]
        evaluated = [{k: v for k, v in e.items() if k in plain["epochs"][0]} for e in result["epochs"]]
        assert [e for e in evaluated if e["split"] != "train"] == plain["epochs"]
        assert (result["auc"], result["split"]) == (plain["auc"], "test")
        assert all(("gauc" in epoch) == (metrics.group is not None) for epoch in result["epochs"])


@pytest.mark.parametrize("block_batches", some([1, 5, 16], 5))
def test_blocks_commits_and_dask_never_change_the_metrics(data_root, expected, client, block_batches):
    workflow = workflow_of(data_root, block_batches=block_batches).with_settings({"commit.every_blocks": 1})
    for executor in (None, client):
        assert run(workflow, executor, **SIZES)["epochs"] == expected["epochs"]


@pytest.mark.parametrize("after", some([1, 3, 5], 3))
@pytest.mark.parametrize("metrics", some([BOTH, Metrics(progressive=True)], BOTH))
def test_a_run_resumed_within_an_epoch_reports_all_of_it(data_root, metrics, after, tmp_path, monkeypatch):
    """The same values, stored and printed."""
    args = {"hidden": (6,), "tower": (4,)}
    workflow = workflow_of(data_root, metrics, labels=("click", "bought"), kind=MMoE, args=args)
    undisturbed = make_driver(workflow, tmp_path / "undisturbed", **SIZES)
    expected = undisturbed.run()
    often = workflow.model_copy(update={"commit": Commit(every_blocks=2)})
    kill_after(after, often, tmp_path / "killed", monkeypatch)
    assert list((tmp_path / "killed" / "commits").glob("*.sums"))
    driver = make_driver(often, tmp_path / "killed", **SIZES)
    result = driver.run()
    assert result["fingerprint"] == expected["fingerprint"]
    assert result["epochs"] == expected["epochs"]
    one, other = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("killed", "undisturbed"))
    assert one == other
    lines = [[line for line in printed(of).splitlines() if line.startswith("epoch")] for of in (driver, undisturbed)]
    assert lines[0] == lines[1][-len(lines[0]) :]
    assert "train (progressive" in lines[0][0]
    kept = driver.commits.all()
    files = {path.name for path in driver.commits.folder.glob("*.sums")}
    assert files == {f"{one.number:06}.sums" for one in kept if one.state.get("sums")}
    assert not kept[-1].state.get("sums"), "an epoch that is over needs none"


def test_a_damaged_file_of_sums_is_found(data_root, tmp_path, monkeypatch, capsys):
    workflow = workflow_of(data_root).model_copy(update={"commit": Commit(every_blocks=3)})
    kill_after(1, workflow, tmp_path, monkeypatch)
    assert verify.main([str(tmp_path)]) == 0
    (file,) = (tmp_path / "commits").glob("*.sums")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert verify.main([str(tmp_path)]) == 1
    assert "000001.sums" in "".join(capsys.readouterr())
    with pytest.raises(Damaged, match=r"000001.sums: its checksum is not that of commit 1"):
        make_driver(workflow, tmp_path, **SIZES)


@pytest.mark.parametrize("world", some([2, 3], 3))
def test_workers_report_all_of_a_resumed_epoch(data_root, tmp_path, world):
    """The values that undisturbed workers report; another number of workers reports all examples as well."""
    workflow = workflow_of(data_root, labels=("click", "bought"), kind=MMoE, args={"hidden": (6,), "tower": (4,)})

    def epochs_of(folder, world):
        with crew_driver(workflow, folder, world, **SIZES) as driver:
            train(driver)
            return driver.history.epochs

    with crew_driver(workflow, tmp_path / "stopped", world, **SIZES) as driver:
        blocks = list(driver.agenda.blocks(2))
        assert driver.crew.run(blocks[:4], 2, driver.history.add) is None
        driver.commit(DueCommit(blocks[4]))
    shutil.copytree(tmp_path / "stopped", tmp_path / "other")
    expected = epochs_of(tmp_path / "undisturbed", world)
    assert epochs_of(tmp_path / "stopped", world) == expected
    found = epochs_of(tmp_path / "other", world + 1)[0]
    assert (found["split"], found["examples"]) == ("train", 90)
    assert found["logloss_bought"] == pytest.approx(expected[0]["logloss_bought"], rel=1e-4)


def test_a_resume_with_other_metrics_covers_the_rest_of_the_epoch(data_root, expected, tmp_path, monkeypatch):
    workflow = workflow_of(data_root).model_copy(update={"commit": Commit(every_blocks=3)})
    kill_after(1, workflow, tmp_path, monkeypatch)
    alone = workflow.model_copy(update={"metrics": Metrics(progressive=True)})
    result = make_driver(alone, tmp_path, **SIZES).run()
    assert result["fingerprint"] == expected["fingerprint"]
    first, second, *_ = [epoch for epoch in result["epochs"] if epoch["split"] == "train"]
    assert (first["examples"], second["examples"]) == (90 - 3 * 2 * 6, 90)
