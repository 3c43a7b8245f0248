"""Progress of the preparation of data: rows so far, rows per second, and the time left, estimated from input bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TextIO

from pipeline.monitor.progress import Updates, clock_time


@dataclass(frozen=True, slots=True)
class RowsDone:
    """Content of one update. `done` and `total` are bytes of the input, `rate` is rows per second, `left` is seconds;
    nan while unknown."""

    what: str
    done: int
    total: int
    rows: int
    rate: float
    left: float

    def __str__(self) -> str:
        rate = "-" if math.isnan(self.rate) else f"{self.rate:,.0f}"
        return f"{self.what}  {self.rows:,} rows  {rate}/s  {self.done / self.total:4.0%}  {clock_time(self.left)} left"


class RowProgress(Updates):
    """Progress of a preparation. Rates are averages since the context was entered."""

    def __init__(
        self, what: str, total_bytes: int, stream: TextIO | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(max(1, total_bytes), stream, clock)
        self._what, self._before = what, (0, 0)

    def begin_at(self, done_bytes: int, rows: int) -> None:
        """Set the bytes and rows done by earlier processes. Call it before entering the context."""
        self._before = (done_bytes, rows)

    def __enter__(self) -> Self:
        self._began = self._clock()
        return super().__enter__()

    def update(self, done_bytes: int, rows: int) -> None:
        """Show the bytes of the input and the rows that are done, including those of earlier processes."""
        now = self._clock()
        bytes_before, rows_before = self._before
        seconds, fresh = now - self._began, done_bytes - bytes_before
        rate = (rows - rows_before) / seconds if seconds > 0 and rows > rows_before else math.nan
        left = (self._total - done_bytes) * seconds / fresh if fresh > 0 else math.nan
        self._show(RowsDone(self._what, done_bytes, self._total, rows, rate, left), now)
