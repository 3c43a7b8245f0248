"""History of the rates of each step of a run: learning rate, L2, and the factor of a clipped gradient.

Under dense semantics the catch-up of absent rows needs this history, so every commit contains it, run-length encoded in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.device.device import Device
from pipeline.kernels.row_rules import FACTOR, L2, adam_size
from pipeline.records import F32, I32, Array
from pipeline.settings.optimizer import Adam, RowOptimizerConfig

FIRST_STEP, RUNS, ROWS_BEFORE = "rates/first_step", "rates/runs", "rates/rows_before"
BYTES_PER_STEP = 20
MAX_STEPS = 1 << 31
STEPS_AHEAD = 1 << 12
"""Number of lines that are computed, and copied to a GPU, at a time."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Rates of a run of consecutive steps."""

    lr: float
    l2: float
    factor: float = 1.0


class Rates:
    """Table with one line of four numbers per step (see `row_rules`), in the memory of the device that runs the
    kernels: 20 bytes per step of the run."""

    def __init__(self, rows: RowOptimizerConfig, device: Device, each_step: bool) -> None:
        """`each_step`: True if gradients may be clipped; then every step counts as a separate run."""
        self._rows, self._device, self.each_step = rows, device, each_step
        self.num_steps = 0
        self.has_rows_before = False
        """True if the run started with rows from another run or from files (`Workflow.init_from`)."""
        self._runs: list[tuple[int, Rate]] = []
        self._table_T4: F32 = np.zeros((1, 4), np.float32)
        self._begins_T: I32 = np.zeros(1, np.int32)
        self._filled = 0
        """Last step that has a line. Lines after `num_steps` are computed ahead with the current rates and recomputed
        if the rates change."""
        self._there: tuple[Any, Any] | None = None

    @property
    def l2(self) -> float:
        """Factor of the L2 term of the gradient; 0 for FTRL, whose L2 is part of its closed form."""
        return 0.0 if self._rows.kind == "ftrl" else self._rows.l2

    @property
    def had_l2(self) -> bool:
        return any(rate.l2 for _, rate in self._runs)

    def until(self, step: int) -> tuple[int, float, float]:
        """Return, for the steps up to `step`: the last step with L2 (0 if none), the largest L2, and the largest
        learning rate."""
        last, max_l2, max_lr, end = 0, 0.0, 0.0, step
        for first, rate in reversed(self._runs):
            if first <= step:
                last = last or (end if rate.l2 else 0)
                max_l2, max_lr = max(max_l2, rate.l2), max(max_lr, rate.lr)
            end = min(end, first - 1)
        return last, max_l2, max_lr

    def through(self, last: int, lr: float) -> tuple[Any, Any]:
        """Return, for steps up to `last`, lines [T, 4] and the first step of each step's run [T]. New steps get this
        learning rate.

        On a GPU it must be called as part of the work of the stream that uses the table."""
        if last > self.num_steps:
            self._take(last, Rate(lr, self.l2))
        if self._device.on_gpu and self._there is None:
            self._bring(0)
        return self._there or self.on_host

    @property
    def on_host(self) -> tuple[F32, I32]:
        """The table in host memory. If the device is a GPU, it lacks the factors of clipped gradients."""
        return self._table_T4, self._begins_T

    def clip(self, step: int, factor: float) -> None:
        """Record on the host that the step's gradient was scaled by `factor`. If the model is on a GPU, the factor is
        known only there."""
        line = self._table_T4[step]
        line[FACTOR] = factor
        line[L2] *= line[FACTOR]

    def _take(self, last: int, rate: Rate) -> None:
        if not self._runs or self._runs[-1][1] != rate:
            self._runs.append((self.num_steps + 1, rate))
            self._filled = self.num_steps
        if last > self._filled:
            first = self._filled + 1
            self._fill(max(last, self._filled + STEPS_AHEAD), rate)
            if self._there:
                self._bring(first)
        self.num_steps = last

    def _fill(self, last: int, rate: Rate) -> None:
        self._reserve(last + 1)
        for step in range(self._filled + 1, last + 1):
            self._table_T4[step] = *self._size_and_eps(rate.lr, step), rate.l2, 1
            self._begins_T[step] = step if self.each_step else self._runs[-1][0]
            self.clip(step, rate.factor)
        self._filled = last

    def _size_and_eps(self, lr: float, step: int) -> tuple[float, float]:
        rows = self._rows
        if not isinstance(rows, Adam):
            return lr, getattr(rows, "eps", 0.0)
        correction = math.sqrt(1.0 - rows.beta2**step) if rows.eps_place == "torch" else 1.0
        return adam_size(lr, rows.beta1, rows.beta2, step), rows.eps * correction

    def _reserve(self, num_lines: int) -> None:
        if num_lines > len(self._table_T4):
            more = max(num_lines, 2 * len(self._table_T4)) - len(self._table_T4)
            self._table_T4 = np.concatenate([self._table_T4, np.zeros((more, 4), np.float32)])
            self._begins_T = np.concatenate([self._begins_T, np.zeros(more, np.int32)])

    def _bring(self, first: int) -> None:
        """Copy the lines from step `first` on to the GPU's table; earlier lines there may have other factors. The host
        waits for the copy, so many steps are copied at a time."""
        here, before = (self._table_T4, self._begins_T), self._there
        if before is None or len(before[0]) < len(here[0]):
            self._there = (self._device.empty(here[0].shape, np.float32), self._device.empty(here[1].shape, np.int32))
            for old, longer in zip(before or (), self._there, strict=False):
                longer[:first] = old[:first]
        end = self._filled + 1
        for array, there in zip(here, self._there or (), strict=True):
            there[first:end] = self._device.to_device(array[first:end])

    def save(self) -> dict[str, Array]:
        """Return the history for a commit. No block may be in flight."""
        runs = self._parted() if self.each_step else self._runs
        return {
            FIRST_STEP: np.array([self.num_steps, *(step for step, _ in runs)], np.int64),
            RUNS: np.array([(r.lr, r.l2, r.factor) for _, r in runs], np.float64).reshape(-1, 3),
            **({ROWS_BEFORE: np.ones(1, np.int64)} if self.has_rows_before else {}),
        }

    def _parted(self) -> list[tuple[int, Rate]]:
        """Split the runs into parts of equal factors."""
        table_T4 = self.host_table()
        parted: list[tuple[int, Rate]] = []
        ends = [step for step, _ in self._runs[1:]] + [self.num_steps + 1]
        for (begin, rate), end in zip(self._runs, ends, strict=False):
            factors = table_T4[begin:end, FACTOR]
            changes = np.flatnonzero(np.diff(factors, prepend=np.float32(np.nan)) != 0)
            parted += [(begin + at, Rate(rate.lr, rate.l2, float(factors[at]))) for at in changes.tolist()]
        return parted

    def host_table(self) -> F32:
        """Return all lines in host memory. No block may be in flight."""
        if self._there is None:
            return self._table_T4
        pinned: F32 = self._device.pinned(self._there[0].shape, np.float32)
        self._device.train.copy(self._there[0], pinned)
        self._device.train.record().wait()
        return pinned

    def load(self, saved: Mapping[str, Array]) -> None:
        """Restore a history from `save`. Raises ValueError if it is not a valid history."""
        if FIRST_STEP not in saved or RUNS not in saved:
            raise ValueError(f"the commit has no {FIRST_STEP} or no {RUNS}")
        self.has_rows_before = ROWS_BEFORE in saved
        steps_N, runs_N3 = saved[FIRST_STEP], saved[RUNS]
        kinds = (steps_N.dtype, steps_N.ndim, runs_N3.dtype, runs_N3.shape)
        fits = kinds == (np.int64, 1, np.float64, (steps_N.size - 1, 3))
        if not (fits and 0 <= steps_N[0] < MAX_STEPS and (np.diff(steps_N[1:]) > 0).all()):
            raise ValueError(f"{FIRST_STEP} and {RUNS} of the commit are not a valid history of steps")
        num_steps, *first_steps = steps_N.tolist()
        if first_steps and not (first_steps[0] > 0 and first_steps[-1] <= num_steps and np.isfinite(runs_N3).all()):
            raise ValueError(f"{FIRST_STEP} of the commit does not fit {num_steps} steps: {str(first_steps)[:200]}")
        if self._rows.semantics == "lazy":
            # Lazy semantics never use the rates of past steps.
            self._reserve(num_steps + 1)
            self.num_steps = self._filled = num_steps
            return
        if num_steps and first_steps[:1] != [1]:
            raise ValueError(f"{FIRST_STEP} of the commit does not start at the first step: {str(first_steps)[:200]}")
        runs = [Rate(*numbers) for numbers in saved[RUNS].tolist()]
        # Steps with different factors stay separate runs, even if this workflow does not clip.
        self.each_step = self.each_step or any(rate.factor != 1 for rate in runs)
        lasts = [*(first - 1 for first in first_steps[1:]), num_steps][: len(runs)]
        for first, last, rate in zip(first_steps, lasts, runs, strict=True):
            self._runs.append((first, rate))
            self._fill(last, rate)
        self.num_steps = num_steps
