"""The rows of a slab as the row optimizer uses them: weights to read, wide rows to catch up, the update of a step.

Wide rows are used in place. Narrow rows are widened for a step and narrowed only once, when they are updated: a few at
a time, or through a buffer for the whole batch if they are caught up first or are on a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.device.device import Device
from pipeline.kernels.init_rows import clear_unused
from pipeline.kernels.launch import array_library
from pipeline.kernels.narrow_rows import narrow_rows, stream_of, update_narrow_rows_cpu, widen_rows
from pipeline.kernels.pool import lookup
from pipeline.kernels.update_rows import update_rows
from pipeline.machine.threads import Threads, Whole
from pipeline.records import F32, I32, U32
from pipeline.storage.layout import WEIGHTS_AT, RowLayout
from pipeline.storage.tier import Slab

HeldRows = tuple[U32, I32]
"""Wide rows, and the position among them of each of P rows."""


@dataclass(frozen=True, slots=True)
class StepRule:
    """Arguments of `update_rows` for the rule, other than rows and gradients."""

    number: int
    dim: int
    step: int
    rates_T4: F32
    settings: tuple[Any, ...]
    whole: bool


class SlabRows(ABC):
    """Stored rows of W words. `begin` and `end` bound the part of a batch's P rows that a thread works on."""

    def __init__(self, slab: Slab, row: RowLayout) -> None:
        self._slab, self.row = slab, row
        self._last_at = row.wide.last_step_at

    def clear_unused(self, rows_P: I32, widths_P: I32) -> None:
        """Set to zero, in rows that were never trained, the weights that the row's field does not use. `widths_P`:
        number of embedding weights that the field uses."""
        weights, words_SW = self.row.parts[0], self._slab.words_SW
        values_SX = words_SW if weights.number_format == "float32" else words_SW.view(np.uint16)
        places = self.row.last_step_at, weights.at, self.row.embedding_dim
        clear_unused(words_SW, values_SX, *places, rows_P, widths_P)

    @abstractmethod
    def read(self, staged_AW: U32, rows_P: I32, weights_PC: F32) -> None:
        """Write the weights of rows r, or of rows -1 - r of staging for r < 0."""

    @abstractmethod
    def copy(self, staged_AW: U32, rows_P: I32, wide_PX: U32) -> None:
        """Write whole rows, widened; otherwise like `read`."""

    @abstractmethod
    def hold(self, rows_P: I32) -> HeldRows:
        """Return rows that may be caught up before their update; valid until the next call."""

    @abstractmethod
    def update(
        self, held: HeldRows | None, rows_P: I32, begin: int, end: int, grads_PC: F32, starts_P: I32, rule: StepRule
    ) -> None:
        """Update rows by one step: those returned by `hold`, if it was called for this step."""


class WideRows(SlabRows):
    def read(self, staged_AW: U32, rows_P: I32, weights_PC: F32) -> None:
        lookup(self._slab.floats_SW, staged_AW.view(np.float32), rows_P, WEIGHTS_AT, weights_PC)

    def copy(self, staged_AW: U32, rows_P: I32, wide_PX: U32) -> None:
        lookup(self._slab.floats_SW, staged_AW.view(np.float32), rows_P, 0, wide_PX.view(np.float32))

    def hold(self, rows_P: I32) -> HeldRows:
        return self._slab.words_SW, rows_P

    def update(
        self, held: HeldRows | None, rows_P: I32, begin: int, end: int, grads_PC: F32, starts_P: I32, rule: StepRule
    ) -> None:
        update_held((self._slab.words_SW, rows_P), self._last_at, begin, end, grads_PC, starts_P, rule)


class NarrowRows(SlabRows):
    def __init__(self, slab: Slab, row: RowLayout, threads: Threads | Whole, device: Device, seed: int) -> None:
        """`seed`: seed of the random bits of rounding."""
        super().__init__(slab, row)
        self._threads, self._device, self._seed = threads, device, seed
        self._whole_N4, self._weights_14 = (device.to_device(a) for a in (row.widening(), row.lookup_of_weights()))
        self._wide_PX: U32 = device.empty((0, row.wide.num_words), np.uint32)

    def read(self, staged_AW: U32, rows_P: I32, weights_PC: F32) -> None:
        widen_rows(self._slab.words_SW, staged_AW, rows_P, self._weights_14, weights_PC.view(np.uint32))

    def copy(self, staged_AW: U32, rows_P: I32, wide_PX: U32) -> None:
        widen_rows(self._slab.words_SW, staged_AW, rows_P, self._whole_N4, wide_PX)

    def hold(self, rows_P: I32) -> HeldRows:
        if len(self._wide_PX) < len(rows_P):
            self._wide_PX = self._device.empty((len(rows_P) + len(rows_P) // 2, self.row.wide.num_words), np.uint32)
        words_SW, wide_PX = self._slab.words_SW, self._wide_PX[: len(rows_P)]
        self._threads.split(len(rows_P), lambda a, b: self.copy(words_SW[:0], rows_P[a:b], wide_PX[a:b]))
        return wide_PX, array_library(rows_P).arange(len(rows_P), dtype=np.int32)

    def update(
        self, held: HeldRows | None, rows_P: I32, begin: int, end: int, grads_PC: F32, starts_P: I32, rule: StepRule
    ) -> None:
        words_SW, part = self._slab.words_SW, slice(begin, end)
        if held is None and self._device.on_gpu:
            held = self.hold(rows_P)
        if held:
            update_held(held, self._last_at, begin, end, grads_PC, starts_P, rule)
            narrow_rows(held[0][part], rows_P[part], self._whole_N4, self._seed, rule.step, words_SW)
        else:
            update_narrow_rows_cpu(
                words_SW, self._whole_N4, self.row.wide.num_words, stream_of(self._seed, rule.step), rule.number,
                WEIGHTS_AT, self._last_at, rows_P[part], grads_PC[part], starts_P[begin : end + 1], rule.dim,
                rule.step, rule.rates_T4, rule.settings, rule.whole,
            )  # fmt: skip


def slab_rows(slab: Slab, row: RowLayout, threads: Threads | Whole, device: Device, seed: int) -> SlabRows:
    """Return the rows of a slab, wide or narrow; `seed` as for NarrowRows."""
    return NarrowRows(slab, row, threads, device, seed) if row.formats else WideRows(slab, row)


def update_held(
    held: HeldRows, last_at: int, begin: int, end: int, grads_PC: F32, starts_P: I32, rule: StepRule
) -> None:
    """Update wide rows in place."""
    words_SX, at_P = held
    update_rows(
        rule.number, words_SX.view(np.float32), words_SX, WEIGHTS_AT, last_at, at_P[begin:end], grads_PC[begin:end],
        starts_P[begin : end + 1], rule.dim, rule.step, rule.rates_T4, rule.settings, rule.whole,
    )  # fmt: skip
