"""Scaling of a workflow to batches s times as large, by CowClip's rule or one of the rules it was compared with."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.workflow import Workflow


class Rule(NamedTuple):
    """Exponents of s for the factors of three settings, and the dense part's warm-up if the rule sets it."""

    row_lr: float
    row_l2: float
    dense_lr: float
    warm_up_epochs: float | None = None


SCALING_RULES = {
    "none": Rule(0, 0, 0),
    "sqrt": Rule(0.5, 0.5, 0.5),
    "sqrt_star": Rule(0.5, 0, 0.5),
    "linear": Rule(1, 0, 1),
    "n2_lambda": Rule(0, 2, 0.5),
    "cowclip": Rule(0, 1, 0.5, warm_up_epochs=1),
}
"""Rules of Zheng et al., CowClip, AAAI 2023: its rule and those of its comparison, under the names used there."""


def scale_batch(workflow: Workflow, batch_size: int, rule: str = "cowclip") -> Workflow:
    """Return a copy of the workflow with batches of `batch_size` examples, s times the previous number, and the rule's
    settings.

    s need not be an integer and may be below 1. A block keeps about the same number of examples but has at least one
    batch; this changes no result. All other settings stay the same, including the clip.

    Raises ValueError if the rule does not exist, the batch size is below 1, or the workflow's checks reject the
    settings, such as an L2 above the clip's r.
    """
    if rule not in SCALING_RULES:
        raise ValueError(f"rule is {rule!r}; expected one of {', '.join(SCALING_RULES)}")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected at least 1")
    powers, fields = SCALING_RULES[rule], workflow.model_dump()
    rows, dense, schedule = fields["optimizer"]["rows"], fields["optimizer"]["dense"], fields["schedule"]
    s = batch_size / schedule["batch_size"]
    rows["lr"] *= s**powers.row_lr
    rows["l2"] *= s**powers.row_l2
    dense["lr"] *= s**powers.dense_lr
    if powers.warm_up_epochs is not None:
        dense["warm_up_epochs"] = powers.warm_up_epochs
    schedule["batch_size"] = batch_size
    schedule["block_batches"] = max(1, round(schedule["block_batches"] / s))
    return Workflow.model_validate(fields)
