"""Optimizer of the rows: updates a batch's rows in place and, under dense semantics, catches them up first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.device.device import Device
from pipeline.kernels.catch_up import catch_up
from pipeline.kernels.launch import array_library
from pipeline.kernels.pool import lookup
from pipeline.kernels.requests import count_examples
from pipeline.kernels.row_rules import ADAM, FACTOR, L2, RULE_NUMBERS
from pipeline.kernels.update_rows import clip_gradients
from pipeline.machine.threads import Threads, Whole
from pipeline.optim.rates import Rates
from pipeline.optim.slab_rows import HeldRows, SlabRows, StepRule
from pipeline.records import F32, I32, U32, BatchIndex
from pipeline.settings.optimizer import Adam, Ftrl, Optimizer
from pipeline.storage.layout import WEIGHTS_AT

if TYPE_CHECKING:
    # Serving catches rows up without torch.
    from torch import Tensor

WeightReader = Callable[[int, int, F32], None]
"""Writes the weights [P, C] of rows `begin` to `end` - 1 of a batch."""
QUIET = 7.8e-10
"""The weight of an absent row no longer changes after m / sqrt(v) has shrunk by this factor: 200 steps of Adam with
beta1 0.9 and beta2 0.999."""
NEVER = 1 << 60
FARTHEST = 8.6
"""Upper bound of an initial weight, in standard deviations (see `init_rows`)."""


class RowOptimizer:
    """Optimizer of the rows in the device slab. A batch has P rows with C weights each."""

    def __init__(
        self, optimizer: Optimizer, slab_rows: SlabRows, init_std: float, threads: Threads | Whole, device: Device,
        repeats_keys: bool,
    ) -> None:  # fmt: skip
        """`repeats_keys`: True if a key may occur more than once in an example."""
        self._rows = rows = optimizer.rows
        self._rule = RULE_NUMBERS[rows.kind]
        self.lr = rows.lr
        """Learning rate of the coming steps."""
        self._slab_rows, self._threads, self._device = slab_rows, threads, device
        self._row = row = slab_rows.row.wide
        self._held: HeldRows | None = None
        self._init_std = init_std
        self.rates = Rates(rows, device, each_step=optimizer.max_grad_norm is not None)
        self._settings = tuple(np.float32(value) for value in _settings(rows))
        self.quiet = 0
        self.clips = False
        clip = (0.0, 0.0)
        if isinstance(rows, Adam):
            if rows.semantics == "dense":
                fall = rows.beta1 / math.sqrt(rows.beta2) if rows.beta1 else 0.0
                self.quiet = math.ceil(math.log(QUIET) / math.log(max(fall, 1e-9)))
            if rows.clip:
                self.clips, clip = True, (rows.clip.r, rows.clip.floor_of(row.embedding_dim))
        self._clip = np.float32(clip[0]), np.float32(clip[1])
        self.counts_examples = self.clips and repeats_keys
        """True if the examples that contain a key must be counted. If False, their number equals the key's number of
        occurrences or is not needed."""
        self._lifespan, self._probed = NEVER, 0
        self._copy_UX: U32 = device.empty((0, row.num_words), np.uint32)

    @property
    def catches_up(self) -> bool:
        """True if rows move while they are absent from the batches."""
        if self._rows.semantics == "lazy" or isinstance(self._rows, Ftrl):
            return False
        return self._rule == ADAM or self.rates.l2 > 0 or self.rates.had_l2

    def clear_unused(self, rows_P: I32, widths_P: I32) -> None:
        """Set to zero, in rows that were never trained, the weights that the row's field does not use, before the rows
        are caught up (see `pipeline.training.build`). `widths_P`: number of embedding weights that the field uses."""
        self._threads.split(len(rows_P), lambda a, b: self._slab_rows.clear_unused(rows_P[a:b], widths_P[a:b]))

    def catch_up(self, rows_P: I32, step: int) -> None:
        """Catch up rows of the slab to the end of `step`, before they are read and updated."""
        self._held = self._slab_rows.hold(rows_P) if self.catches_up else None
        if self._held:
            self._catch_up(*self._held, step, NEVER)

    def reader(self, rows_P: I32) -> WeightReader:
        """Return a reader of rows in the state in which `catch_up` left them."""
        return _reader_of_wide(*self._held) if self._held else self._reader_of(self._copy_UX[:0], rows_P)

    def _reader_of(self, staged_AW: U32, rows_P: I32) -> WeightReader:
        return lambda begin, end, weights_PC: self._slab_rows.read(staged_AW, rows_P[begin:end], weights_PC)

    def expect(self, last_step: int) -> None:
        """Prepare the rates of all coming steps up to this one."""
        self.rates.through(last_step, self.lr)

    def scale(self, step: int, factor: Tensor) -> None:
        """Scale the gradients of this step, including L2, by `factor`, which is on the model's device."""
        table_T4 = self.rates.through(step, self.lr)[0]
        if self._device.on_gpu:
            from pipeline.device.device import tensor_of

            line = tensor_of(table_T4)[step]
            line[FACTOR] = factor
            line[L2] *= factor
        else:
            self.rates.clip(step, float(factor))

    def reader_of_block(self, staged_AW: U32, rows_U: I32, step: int) -> Callable[[I32], WeightReader]:
        """Return a function that makes readers for a scored block: for rows `unique_P` of its U rows, in their state
        after `step`. An entry -1 - r of `rows_U` means row r of staging."""
        if not self.catches_up or not step:
            return lambda unique_P: self._reader_of(staged_AW, rows_U[unique_P])
        if len(self._copy_UX) < len(rows_U):
            self._copy_UX = self._device.empty((len(rows_U) + len(rows_U) // 2, self._row.num_words), np.uint32)
        copy_UX = self._copy_UX[: len(rows_U)]
        self._slab_rows.copy(staged_AW, rows_U, copy_UX)
        self.catch_up_copy(copy_UX, step)
        return lambda unique_P: _reader_of_wide(copy_UX, unique_P)

    def catch_up_copy(self, rows_PW: U32, step: int) -> None:
        """Catch up wide rows outside the slab to `step`. Afterwards only their weights are valid, not their state."""
        if self.catches_up and step:
            at_P = array_library(rows_PW).arange(len(rows_PW), dtype=np.int32)
            self._catch_up(rows_PW, at_P, step, self._life_of_first_rows(step))

    def catch_up_on_host(self) -> Callable[[U32], None]:
        """Return a function that catches up wide rows in host memory, including state, to the last step taken. No
        block may be in flight."""
        if not self.catches_up:
            return lambda rows_UW: None
        tables, step = (self.rates.host_table(), self.rates.on_host[1]), self.rates.num_steps
        return lambda rows_UW: self._catch_up(rows_UW, np.arange(len(rows_UW), dtype=np.int32), step, NEVER, tables)

    def _ahead(self, step: int, lifespan: int) -> tuple[int, int, np.float32, int, np.float32]:
        last_l2, max_l2, max_lr = self.rates.until(step)
        return last_l2, self.quiet, np.float32(max_l2), lifespan, np.float32(max_lr)

    def _catch_up(
        self, words_SW: U32, rows_P: I32, step: int, lifespan: int, tables: tuple[Any, Any] | None = None
    ) -> None:
        row, rates = self._row, self.rates
        tables = tables or rates.through(step, self.lr)
        ahead = self._ahead(step, lifespan)
        floats_SW = words_SW.view(np.float32)
        self._threads.split(
            len(rows_P),
            lambda a, b: catch_up(
                self._rule, floats_SW, words_SW, WEIGHTS_AT, row.last_step_at, rows_P[a:b], row.num_weights,
                row.embedding_dim, step, *tables, self._settings, ahead,
            ),
        )  # fmt: skip

    def update(
        self, rows_P: I32, grads_PC: F32, weights_PC: F32, starts_P: I32, examples_with_key_P: I32, step: int
    ) -> Any:
        """Update rows from their summed gradients and their current weights, both [P, C]; `step` counts from 1.

        The differences of `starts_P` [P + 1] are the numbers of occurrences of each key in the batch. Only CowClip uses
        `examples_with_key_P` (see `examples_with_key`). Returns, with CowClip, uint8 [P], 1 where a row's gradient was
        clipped; otherwise an empty array."""
        row = self._row
        table_T4 = self.rates.through(step, self.lr)[0]
        clipped_P = self._device.empty(len(rows_P) if self.clips else 0, np.uint8)
        if self.clips:
            self._threads.split(
                len(rows_P),
                lambda a, b: clip_gradients(
                    grads_PC[a:b], weights_PC[a:b], examples_with_key_P[a:b], row.embedding_dim, step, table_T4,
                    self._clip, clipped_P[a:b],
                ),
            )  # fmt: skip
        rule = StepRule(self._rule, row.embedding_dim, step, table_T4, self._settings, self.clips)
        self._threads.split(
            len(rows_P), lambda a, b: self._slab_rows.update(self._held, rows_P, a, b, grads_PC, starts_P, rule)
        )
        return clipped_P

    def examples_with_key(self, index: BatchIndex, num_fields: int) -> Any:
        """[P] number of examples of the batch that contain each key; empty without CowClip, the only rule that needs
        it."""
        if not self.clips:
            return index.starts_P[:0]
        counts_P = array_library(index.starts_P).diff(index.starts_P)
        if self.counts_examples:
            self._threads.split(
                len(counts_P),
                lambda a, b: count_examples(
                    index.source_V, index.starts_P[a : b + 1], num_fields, counts_P[a:b], index.lists_LB
                ),
            )
        return counts_P

    def _life_of_first_rows(self, step: int) -> int:
        """Smallest power-of-two step, at least 1,024, by which every never-trained row has decayed to zero; NEVER if
        there is no such step yet.

        It is found by applying all steps so far to weights of all initial sizes. Rows that the run started with may
        have any weights and state; if there are such rows, there is no such step.
        """
        if self._rule != ADAM or (self._device.on_gpu and self.rates.each_step) or self.rates.has_rows_before:
            return NEVER
        probe = 1 << 10
        while self._lifespan == NEVER and probe <= step:
            if probe > self._probed:
                self._probed = probe
                if self._all_dead(probe):
                    self._lifespan = probe
            probe *= 2
        return self._lifespan

    def _all_dead(self, step: int) -> bool:
        width = 64
        row_1W: F32 = np.zeros((1, 3 * width), np.float32)
        row_1W[0, :width] = self._init_std * np.geomspace(1e-6, FARTHEST, width)
        ahead = self._ahead(step, NEVER)
        catch_up(
            ADAM, row_1W, np.zeros((1, 1), np.uint32), 0, 0, np.zeros(1, np.int32), width, width, step,
            *self.rates.on_host, self._settings, ahead,
        )  # fmt: skip
        return not row_1W[0, :width].any()


def _reader_of_wide(words_SX: U32, at_P: I32) -> WeightReader:
    floats_SX: F32 = words_SX.view(np.float32)
    return lambda begin, end, weights_PC: lookup(floats_SX, floats_SX[:0], at_P[begin:end], WEIGHTS_AT, weights_PC)


def _settings(rows: Any) -> tuple[float, float, float, float]:
    """Return the four settings of the rule (see `row_rules`)."""
    if isinstance(rows, Adam):
        return 1 - rows.beta1, 1 - rows.beta2, 0.0, 0.0
    return (rows.beta, rows.l1, rows.l2, 0.0) if isinstance(rows, Ftrl) else (0.0, 0.0, 0.0, 0.0)
