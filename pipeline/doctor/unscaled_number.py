"""Unscaled numbers: model inputs that are too large, or that training rejects."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import SeenColumn, SeenRows
from pipeline.workflow import Workflow

TYPICAL = 10.0
"""Minimum root mean square of an unscaled input. Networks are initialized for inputs of about 1."""
RARE = 0.001
"""Fraction of rows whose inputs may be large."""
SCALED_ROWS = 30


def find_unscaled_numbers(seen: SeenRows, workflow: Workflow) -> list[Finding]:
    """Check each number as the model's input."""
    rate = workflow.optimizer.dense.lr
    return [
        found
        for number in workflow.data.numbers
        for found in _of_column(seen, seen.features[number.name], rate, number.log1p)
    ]


def _of_column(seen: SeenRows, column: SeenColumn, rate: float, logarithm: bool) -> Iterator[Finding]:
    if column.refused:
        yield Finding("unscaled_number", "fault", (column.name,), f"training refuses {column.name}: {column.refused}")
        return
    assert column.input_N is not None
    assert column.raw_N is not None
    inputs_N = column.input_N.astype(np.float64)
    size = float(np.sqrt(np.square(inputs_N).mean()))
    way = "divide it" if logarithm else "set log1p on the column if it is a count or an amount, or divide it"
    low, high = float(np.nanmin(column.raw_N)), float(np.nanmax(column.raw_N))
    reach = f"{column.name} goes from {low:g} to {high:g}{', and log1p is applied' * logarithm}"
    jumps = np.abs(inputs_N) * rate >= 1
    if jumps.mean() >= RARE and jumps.sum() >= SCALED_ROWS:
        yield Finding(
            "unscaled_number", "fault", (column.name,),
            f"{reach}: {jumps.mean():.2%} of the rows are so large that one step of the optimizer (lr {rate:g}) may "
            f"change their logit by 1 or more (such as {seen.place(int(np.abs(inputs_N).argmax()))}); {way}",
        )  # fmt: skip
    elif size >= TYPICAL:
        yield Finding(
            "unscaled_number", "fault", (column.name,),
            f"{reach}: the typical size of the model's input is {size:.1f}, and networks expect about 1; {way}",
        )  # fmt: skip
