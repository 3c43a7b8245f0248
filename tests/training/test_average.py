"""Averaged weights of the dense part: evaluation and serving have them, training goes on from the plain ones."""

import numpy as np
import pytest
import torch
from conftest import make_workflow
from sklearn.metrics import log_loss, roc_auc_score
from support.depth import some
from support.faults.killed_after_commit import kill_after
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, make_driver, run

import pipeline
from pipeline.optim.dense import AVERAGE, Average
from pipeline.serving.torch_model import model_of
from pipeline.training.dense_state import model_state, save_dense
from pipeline.workflow import Commit


def averaged(root, num_steps=4, **changes):
    workflow = make_workflow(root, args={"hidden": (5,), "batch_norm": True}, **changes)
    return workflow.with_settings({"optimizer.dense.average": num_steps}).model_copy(
        update={"commit": Commit(every_blocks=3)}
    )


@pytest.mark.parametrize("num_steps", some([1, 4, 1000], 4))
def test_a_run_with_averages_equals_the_plain_trainer(data_root, num_steps):
    workflow = averaged(data_root, num_steps)
    result, reference = run(workflow, **THREE_TIERS), Reference(workflow).train()
    assert result["fingerprint"] == reference.fingerprint()
    for epoch, (_, scores, labels) in zip(result["epochs"], reference.scores, strict=True):
        assert epoch["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
        assert epoch["logloss"] == pytest.approx(log_loss(labels, 1 / (1 + np.exp(-np.array(scores)))), abs=1e-9)


def test_averages_change_the_evaluation_and_not_the_training(data_root):
    with_averages = averaged(data_root)
    without = with_averages.with_settings({"optimizer.dense.average": None})
    references = [Reference(workflow).train() for workflow in (with_averages, without)]
    one, other = (dict(reference.model.state_dict()) for reference in references)
    assert all(torch.equal(one[name], other[name]) for name in one)
    results = [run(workflow, **THREE_TIERS)["epochs"] for workflow in (with_averages, without)]
    assert results[0] != results[1]


@pytest.mark.parametrize("commits", some([1, 2, 5, 6], 5))
def test_a_killed_run_resumes_to_the_same_averages(data_root, tmp_path, monkeypatch, commits):
    workflow = averaged(data_root)
    kill_after(commits, workflow, tmp_path, monkeypatch)
    result, whole = make_driver(workflow, tmp_path, **THREE_TIERS).run(), run(workflow, **THREE_TIERS)
    assert (result["fingerprint"], result["epochs"]) == (whole["fingerprint"], whole["epochs"])


def test_averages_can_begin_and_end_in_a_later_session(data_root, tmp_path, monkeypatch):
    workflow = averaged(data_root)
    without = workflow.with_settings({"optimizer.dense.average": None})
    for present, others in ((workflow, without), (without, workflow)):
        folder = tmp_path / str(present.optimizer.dense.average)
        kill_after(3, others, folder, monkeypatch)
        driver = make_driver(present, folder, **THREE_TIERS)
        assert "optimizer.dense.average" in "\n".join(driver.warnings)
        assert driver.run()["examples"] == run(present, **THREE_TIERS)["examples"]


def test_every_reader_of_a_run_has_the_averaged_weights(data_root, tmp_path):
    workflow = averaged(data_root)
    result = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    with pipeline.open_run(tmp_path, "last") as opened:
        served = model_state(opened.model)
    commit = max((tmp_path / "commits").glob("*.safetensors"))
    kept = pipeline_arrays(commit)
    written = pipeline_arrays(tmp_path / "model.safetensors")
    averages = {name.removeprefix(AVERAGE): value for name, value in kept.items() if name.startswith(AVERAGE)}
    assert result["epochs"]
    assert len(averages) > 4
    for name, value in averages.items():
        assert np.array_equal(served[name], value)
        assert np.array_equal(written[name], value)
        assert not np.array_equal(kept[f"model/{name}"], value), "the plain weights are gone"


def pipeline_arrays(path):
    from safetensors.numpy import load

    return load(path.read_bytes())


class Tied(torch.nn.Module):
    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.one = self.other = torch.nn.Linear(num_numbers, 1)


def test_weights_of_two_names_are_served_averaged(data_root):
    workflow = averaged(data_root).with_settings({"model.kind": Tied, "model.args": {}})
    model = Tied(3, len(workflow.data.numbers), 3)
    average = Average(model, 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    average.add(1)
    average.add(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    expected = {name: parameter.detach() - 1 for name, parameter in model.named_parameters()}
    saved = save_dense(model, torch.optim.Adam(model.parameters()), average)
    served = dict(model_of(workflow, saved).named_parameters())
    for name, value in expected.items():
        torch.testing.assert_close(served[name].detach(), value)


def test_averages_of_another_model_are_refused():
    average = Average(torch.nn.Linear(2, 1), 4)
    for saved in ({"average/weight": np.ones((1, 2), np.float32)}, {"average/weight": np.ones(3), "average/bias": 1}):
        with pytest.raises(ValueError, match="the averages of the commit do not belong to this model"):
            average.load({name: np.asarray(value, np.float32) for name, value in saved.items()})


def test_the_average_is_a_mean_first_and_decays_later():
    model = torch.nn.Linear(1, 1, bias=False)
    average, seen = Average(model, 3), []
    for step in range(1, 7):
        with torch.no_grad():
            model.weight.fill_(float(2**step))
        average.add(step)
        seen.append(next(iter(average.items()))[1].item())
    mean = [2.0, 3.0, 14 / 3]
    for step in (4, 5, 6):
        mean.append(mean[-1] * 2 / 3 + 2**step / 3)
    assert seen == pytest.approx(mean)
