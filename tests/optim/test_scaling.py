"""A workflow for larger batches has the learning rates and L2 of the rule that was named, and else what it had."""

import math
from pathlib import Path

import pytest
from conftest import make_workflow
from pydantic import ValidationError

from pipeline.optim.scaling import SCALING_RULES, scale_batch
from pipeline.settings.optimizer import Adam, CowClip, DenseAdam, Optimizer, Sgd

ROW_LR, ROW_L2, DENSE_LR = 1e-4, 2e-5, 8e-4
FACTORS = {
    "none": (1, 1, 1),
    "sqrt": (4, 4, 4),
    "sqrt_star": (4, 1, 4),
    "linear": (16, 1, 16),
    "n2_lambda": (1, 256, 4),
    "cowclip": (1, 16, 4),
}
"""At s = 16: row learning rate, row L2, dense learning rate."""


def workflow_of(rows=None):
    rows = rows or Adam(lr=ROW_LR, l2=ROW_L2, semantics="dense", eps=1e-7, clip=CowClip())
    workflow = make_workflow(Path("nowhere"), batch_size=1024, block_batches=64)
    return workflow.model_copy(update={"optimizer": Optimizer(rows=rows, dense=DenseAdam(lr=DENSE_LR))})


def test_every_scaling_rule_is_covered_here():
    assert set(SCALING_RULES) == set(FACTORS)


@pytest.mark.parametrize("rule", FACTORS)
def test_a_rule_scales_by_its_factors_and_changes_nothing_else(rule):
    before, after = workflow_of(), scale_batch(workflow_of(), 16 * 1024, rule)
    rows, dense = after.optimizer.rows, after.optimizer.dense
    found = rows.lr / ROW_LR, rows.l2 / ROW_L2, dense.lr / DENSE_LR
    assert found == pytest.approx(FACTORS[rule])
    assert dense.warm_up_epochs == (1 if rule == "cowclip" else 0)
    same = after.model_dump()
    same["optimizer"]["rows"] |= {"lr": ROW_LR, "l2": ROW_L2}
    same["optimizer"]["dense"] |= {"lr": DENSE_LR, "warm_up_epochs": 0.0}
    same["schedule"] |= {"batch_size": 1024, "block_batches": before.schedule.block_batches}
    assert same == before.model_dump(), "something else changed"


def test_the_default_rule_is_that_of_cowclip():
    assert scale_batch(workflow_of(), 4096) == scale_batch(workflow_of(), 4096, "cowclip")


@pytest.mark.parametrize(("batch_size", "block_batches"), [(2048, 32), (128 * 1024, 1), (1536, 43), (256, 256)])
def test_a_block_keeps_about_its_number_of_examples(batch_size, block_batches):
    assert scale_batch(workflow_of(), batch_size).schedule.block_batches == block_batches


def test_a_factor_that_is_not_whole_is_kept():
    assert scale_batch(workflow_of(), 1536).optimizer.dense.lr == pytest.approx(DENSE_LR * math.sqrt(1.5))


def test_scaling_up_and_back_restores_the_workflow():
    there = scale_batch(workflow_of(Sgd(lr=0.5, l2=0.25)), 4096, "sqrt")
    assert scale_batch(there, 1024, "sqrt") == workflow_of(Sgd(lr=0.5, l2=0.25))


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match=r"rule is 'square'; expected one of none, .*, cowclip"):
        scale_batch(workflow_of(), 4096, "square")


@pytest.mark.parametrize("batch_size", [0, -1024])
def test_a_batch_size_below_one_is_refused(batch_size):
    with pytest.raises(ValueError, match=r"batch_size is .*; expected at least 1"):
        scale_batch(workflow_of(), batch_size)


def test_a_scaled_l2_that_the_clip_forbids_is_refused():
    rows = Adam(l2=0.1, semantics="dense", clip=CowClip(r=0.5))
    with pytest.raises(ValidationError, match="lower l2 to at most"):
        scale_batch(workflow_of(rows), 16 * 1024)
