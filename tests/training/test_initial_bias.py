"""Initial bias: a constant in the logits of training, evaluation and serving."""

import numpy as np
import pytest
import torch
from conftest import make_workflow
from pydantic import ValidationError
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, run

from pipeline.api import DNN, ESMM, FCN, LR, FinalNet, SharedBottom
from pipeline.preflight.check_model import check_model
from pipeline.training.build import build_model, row_layout

TWO = {"kind": SharedBottom, "args": {"num_labels": 2, "hidden": (8,)}, "labels": ("click", "bought")}


@pytest.mark.parametrize(
    ("changes", "bias"),
    [({}, -2.5), ({"kind": LR, "args": {}, "embedding_dim": 0}, 1.25), (TWO, {"bought": -3.0}), (TWO, -1.5)],
    ids=["DeepFM", "LR", "one of two labels", "both labels"],
)
def test_a_run_with_a_bias_equals_the_plain_trainer(small_workflow, changes, bias):
    workflow = small_workflow(**changes).with_settings({"model.initial_bias": bias})
    assert run(workflow, **THREE_TIERS)["fingerprint"] == Reference(workflow).train().fingerprint()


class WithMore(torch.nn.Module):
    """Model whose output in training is a tuple."""

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.out = torch.nn.Linear(num_numbers, 1)

    def forward(self, numbers, embeddings, first_order):
        return self.out(numbers).squeeze(1), numbers.sum()


def test_the_bias_is_added_to_the_logits_alone(tmp_path):
    workflow = make_workflow(tmp_path, kind=WithMore, args={})
    numbers, others = torch.ones(3, len(workflow.data.numbers)), (torch.zeros(3, 1, 3), torch.zeros(3, 0))
    plain, more = build_model(workflow)(numbers, *others)
    shifted, same = build_model(workflow.with_settings({"model.initial_bias": -4.0}))(numbers, *others)
    assert torch.equal(shifted, plain - 4)
    assert torch.equal(more, same)


@pytest.mark.parametrize("kind", [FinalNet, FCN])
def test_logits_of_parts_have_the_bias_too(tmp_path, kind):
    workflow = make_workflow(tmp_path, kind=kind, args={}, embedding_dim=4)
    inputs = torch.ones(3, len(workflow.data.numbers)), torch.ones(3, len(workflow.data.categories), 4)
    inputs = *inputs, torch.zeros(3, 0)
    outputs = []
    for bias in (0.0, -4.0):
        model = build_model(workflow.with_settings({"model.initial_bias": bias}))
        # Both draw the same dropout.
        torch.manual_seed(3)
        outputs.append(model(*inputs))
    for before, after in zip(*outputs, strict=True):
        assert torch.equal(after, before - 4)


def test_bfloat16_logits_are_widened_before_the_bias(tmp_path):
    workflow = make_workflow(tmp_path, kind=LR, args={}, embedding_dim=0).with_settings({"model.initial_bias": -6.0})
    weights = torch.full((1, 1), 2.0**-7, dtype=torch.bfloat16)
    model = build_model(workflow).bfloat16()
    logits = model(torch.zeros(1, len(workflow.data.numbers), dtype=torch.bfloat16), torch.zeros(1, 1, 0), weights)
    assert logits.item() == -6 + 2.0**-7


def test_a_model_that_gives_probabilities_is_still_noticed(tmp_path):
    class Sigmoid(DNN):
        def forward(self, *inputs):
            return torch.sigmoid(super().forward(*inputs))

    workflow = make_workflow(tmp_path, kind=Sigmoid).with_settings({"model.initial_bias": -3.0})
    said = []
    check_model(workflow, row_layout(workflow), said.append)
    assert "forward returns only values from 0 to 1" in said[0]


@pytest.mark.parametrize(
    ("kind", "bias", "message"),
    [
        (SharedBottom, {"bougth": 1.0}, "did you mean 'bought'"),
        (SharedBottom, float("nan"), "finite"),
        (ESMM, -1.0, "is a part of that of 'click'; give a bias for each label, the second one below the first"),
        (ESMM, {"bought": 1.0}, "the second one below the first"),
    ],
)
def test_a_bias_that_fits_no_label_or_model_is_refused(tmp_path, kind, bias, message):
    workflow = make_workflow(tmp_path, kind=SharedBottom, args={"num_labels": 2}, labels=("click", "bought"))
    model = workflow.model.model_dump() | {"kind": kind, "initial_bias": bias}
    with pytest.raises((ValidationError, ValueError), match=message):
        type(workflow).model_validate(workflow.model_dump() | {"model": model})


def test_without_a_bias_no_hook_is_in_the_model(tmp_path):
    for bias in (0.0, {"click": 0.0}):
        workflow = make_workflow(tmp_path).with_settings({"model.initial_bias": bias})
        assert not build_model(workflow)._forward_hooks


def test_esmm_begins_at_the_rate_of_each_label(tmp_path):
    rates = {"click": 0.05, "bought": 0.002}
    workflow = make_workflow(tmp_path, kind=ESMM, args={"hidden": (4,)}, labels=tuple(rates))
    biases = {label: float(np.log(rate / (1 - rate))) for label, rate in rates.items()}
    model = build_model(workflow.with_settings({"model.initial_bias": biases}))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    sizes = len(workflow.data.numbers), len(workflow.data.categories), workflow.model.embedding_dim
    logits = model(torch.zeros(3, sizes[0]), torch.zeros(3, *sizes[1:]), torch.zeros(3, 0))
    assert torch.sigmoid(logits).detach().numpy() == pytest.approx(np.array([list(rates.values())] * 3))
