"""Prediction of the cost of dense semantics: missed steps to catch up, times the time of one, measured on this
machine."""

from __future__ import annotations

import statistics
import time

import numpy as np

from pipeline.device.device import RAM
from pipeline.machine.threads import Whole
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.settings.optimizer import Adam, Sgd
from pipeline.storage.layout import WEIGHTS_AT, RowLayout
from pipeline.storage.slab import Slab
from pipeline.workflow import Workflow

ROWS, STEPS, REPEATS = 512, 128, 3
STEEP = 38
"""Value of lr * l2 / eps above which Adam's steps are larger than the weight, so that it does not converge to zero."""


def dense_cost(workflow: Workflow, row: RowLayout, keys_of_batch: int, keys_of_window: int) -> str | None:
    """Describe the cost in one paragraph; None if absent rows do not move. `keys_of_batch`, `keys_of_window`: unique
    keys of the first window's largest batch, and of the whole window."""
    optimizer = RowOptimizer(
        workflow.optimizer, row.wide, workflow.model.init_std, Slab(ROWS, row.wide.num_words), Whole(), RAM, False
    )
    if not optimizer.catches_up:
        return None
    nanoseconds = _measure(optimizer, row.wide)
    rows = workflow.optimizer.rows
    if isinstance(rows, Sgd):
        per_row = nanoseconds * STEPS
        return (
            f"dense semantics: catching up a row takes {per_row:,.0f} ns of one thread, however many steps were missed"
        )
    missed = keys_of_window - keys_of_batch
    text = (
        f"dense semantics: each step that a row missed takes {nanoseconds:,.1f} ns of one thread ({row.num_weights} "
        f"weights, measured). The first window has {keys_of_window:,} keys, a batch {keys_of_batch:,} of them: a step "
        f"catches up at most {missed:,} missed ones, {1e-6 * missed * nanoseconds:,.2f} ms; more as the table grows"
    )
    if isinstance(rows, Adam) and not rows.l2:
        maximum = keys_of_batch * optimizer.quiet
        text += f". Without L2 a row needs at most {optimizer.quiet}: {1e-6 * maximum * nanoseconds:,.2f} ms a step"
    if isinstance(rows, Adam) and (steep := rows.lr * rows.l2 / rows.eps) > STEEP:
        text += (
            f". lr * l2 / eps is {steep:,.0f}, above {STEEP}: rows that are absent for long are unstable in any "
            "float32 implementation"
        )
    return text


def _measure(optimizer: RowOptimizer, row: RowLayout) -> float:
    """Measure nanoseconds per row and missed step, on rows that were trained and then absent."""
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(REPEATS + 1):
        words = np.zeros((ROWS, row.num_words), np.uint32)
        floats = words.view(np.float32)
        floats[:, WEIGHTS_AT : row.last_step_at] = rng.uniform(0.01, 0.1, (ROWS, row.last_step_at - WEIGHTS_AT))
        start = time.perf_counter()
        optimizer.catch_up_copy(words, STEPS)
        seconds.append(time.perf_counter() - start)
    # The first run includes compilation.
    return 1e9 * statistics.median(seconds[1:]) / (ROWS * STEPS)
