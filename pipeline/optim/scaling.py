"""Scaling of a workflow to batches s times as large: CowClip's rule, and those that it is compared with."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.workflow import Workflow


class Rule(NamedTuple):
    """Powers of s that three settings are multiplied by, and the dense part's warm-up where the rule sets it."""

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
"""Zheng et al., CowClip, AAAI 2023: its own rule, and those of its comparison by the names they have there."""


def scale_batch(workflow: Workflow, batch_size: int, rule: str = "cowclip") -> Workflow:
    """The workflow with batches of `batch_size` examples, s times as many as it has, and the rule's settings.

    s need not be whole, and may be below 1. A block has about as many examples as before, at least one batch, which
    changes no result. Nothing else changes: the clip, if any, stays what it is.

    ValueError: no such rule; a batch size below 1; settings that the workflow's own checks refuse, such as an L2 above
    the clip's r. `workflow` is not changed.
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
