"""Unscaled numbers: inputs of the model that are too large, of two scales, or that training refuses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import F64, SeenColumn, SeenRows
from pipeline.workflow import Workflow

TYPICAL = 10.0
"""Root mean square of an input from which on it is unscaled. Networks are initialized for inputs of about 1."""
RARE = 0.001
"""Share of the rows whose inputs may be large."""
SCALED_ROWS = 30
DECADE = 10.0
"""Factor between a number and the next larger one that separates two scales. Of the k largest of a heavy-tailed column
(Pareto, exponent a) the least is so far from the next one with a chance of 10 ** (-a * k)."""
WITHIN_RANGE = 0.01
"""Rows in the gap between two scales, relative to those above it, that may be there nevertheless."""


def find_unscaled_numbers(seen: SeenRows, workflow: Workflow) -> list[Finding]:
    """Look at each number as the model gets it."""
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
    else:
        yield from _two_scales(seen, column, reach)


def _two_scales(seen: SeenRows, column: SeenColumn, reach: str) -> Iterator[Finding]:
    """Numbers with a gap of a decade or more in their sizes, that some of the rows lie above."""
    assert column.raw_N is not None
    sizes = np.abs(column.raw_N[~column.null_N])
    sizes = np.sort(sizes[sizes > 0])
    bottom, top = _gap(sizes, seen.num_rows)
    if not top:
        return
    above = int((sizes >= top).sum())
    yield Finding(
        "unscaled_number", "fault", (column.name,),
        f"{reach}, in two scales: {above / seen.num_rows:.2%} of the rows have {top:g} or more, the others {bottom:g} "
        "or less, with hardly anything between: are there two units in it, or a number that means a missing one? "
        "Correct these rows, or make them null",
    )  # fmt: skip


def _gap(sizes_M: F64, num_rows: int) -> tuple[float, float]:
    """Ends of the widest gap of a decade or more that a material part of the rows, but the smaller one, lies above; 0
    and 0 if there is none. `sizes_M`: sorted, above 0."""
    if len(sizes_M) < 2 * SCALED_ROWS:
        return 0.0, 0.0
    least = max(SCALED_ROWS, int(RARE * num_rows))
    at_A = np.arange(len(sizes_M) // 2, len(sizes_M) - least + 1)
    below_A = at_A - 1 - (WITHIN_RANGE * (len(sizes_M) - at_A)).astype(np.int64)
    at_A, below_A = at_A[below_A >= SCALED_ROWS], below_A[below_A >= SCALED_ROWS]
    if not len(at_A):
        return 0.0, 0.0
    widest = int(np.argmax(sizes_M[at_A] / sizes_M[below_A]))
    bottom, top = float(sizes_M[below_A[widest]]), float(sizes_M[at_A[widest]])
    return (bottom, top) if top >= DECADE * max(1.0, bottom) else (0.0, 0.0)
