"""Facts that a prediction follows from."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planner.hits import Forecast
from pipeline.planner.machine import Machine
from pipeline.planner.work import Work
from pipeline.preflight.setup import Setup

KEY_BYTES = 8
"""Bytes of a row's key in the log, besides the row."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Setup, costs and counts of a run."""

    setup: Setup
    machine: Machine
    work: Work
    forecast: Forecast
    dense_bytes: int
    """Bytes of the dense part in a commit."""
    serial: bool = False
    """True for a run in one thread, without Dask."""

    @property
    def row_bytes(self) -> int:
        return self.setup.row.num_bytes
