"""The cost of dense semantics, predicted: missed steps that are made up for, times what one takes on this machine."""

from __future__ import annotations

import statistics
import time

import numpy as np

from pipeline.device.device import RAM
from pipeline.machine.threads import Whole
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.optimizer import Adam, Sgd
from pipeline.storage.layout import WEIGHTS_AT, RowLayout
from pipeline.storage.slab import Slab
from pipeline.workflow import Workflow

ROWS, STEPS, REPEATS = 512, 128, 3
STEEP = 38
"""lr * l2 / eps above which Adam's steps are longer than the weight, and do not bring it to zero."""


def dense_cost(workflow: Workflow, row: RowLayout, keys_of_batch: int, keys_of_window: int) -> str | None:
    """One paragraph; None where absent rows do not move. Keys are those of the first window."""
    optimizer = RowOptimizer(
        workflow.optimizer, row, workflow.model.init_std, Slab(ROWS, row.num_words), Whole(), RAM, False
    )
    if not optimizer.catches_up:
        return None
    nanoseconds = _measure(optimizer, row)
    rows = workflow.optimizer.rows
    if isinstance(rows, Sgd):
        per_row = nanoseconds * STEPS
        return (
            f"dense semantics: a power takes the place of all steps that a row missed, {per_row:,.0f} ns of one thread"
        )
    missed = keys_of_window - keys_of_batch
    text = (
        f"dense semantics: a step that a row missed takes {nanoseconds:,.1f} ns of one thread ({row.num_weights} "
        f"weights, measured). The first window has {keys_of_window:,} keys, a batch {keys_of_batch:,} of them: a step "
        f"makes up for up to {missed:,} missed ones, {1e-6 * missed * nanoseconds:,.2f} ms, and for more as keys come"
    )
    if isinstance(rows, Adam) and not rows.l2:
        maximum = keys_of_batch * optimizer.quiet
        text += f". Without L2 a row is through after {optimizer.quiet}: {1e-6 * maximum * nanoseconds:,.2f} ms at most"
    if isinstance(rows, Adam) and (steep := rows.lr * rows.l2 / rows.eps) > STEEP:
        text += (
            f". lr * l2 / eps is {steep:,.0f}, above {STEEP}: rows that are absent for long are unstable in any "
            "float32 implementation"
        )
    return text


def _measure(optimizer: RowOptimizer, row: RowLayout) -> float:
    """Nanoseconds a row and missed step, of rows that are trained and then absent."""
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(REPEATS + 1):
        words = np.zeros((ROWS, row.num_words), np.uint32)
        floats = words.view(np.float32)
        floats[:, WEIGHTS_AT : row.last_step_at] = rng.uniform(0.01, 0.1, (ROWS, row.last_step_at - WEIGHTS_AT))
        start = time.perf_counter()
        optimizer.catch_up_copy(words, STEPS)
        seconds.append(time.perf_counter() - start)
    # The first one compiles.
    return 1e9 * statistics.median(seconds[1:]) / (ROWS * STEPS)
