"""Progress of the preparation of data: rows so far, rows per second, and the time left, estimated from input bytes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from pipeline.monitor.progress import clock_time, display_on


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


class RowProgress:
    """Context manager that shows the progress on `stream` (default: stderr). Rates are averages since it was
    entered."""

    def __init__(
        self,
        what: str,
        total_bytes: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._what, self._total = what, max(1, total_bytes)
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._pending: RowsDone | None = None
        self._shown_at = -math.inf
        self._before = (0, 0)

    def begin_at(self, done_bytes: int, rows: int) -> None:
        """Set the bytes and rows done by earlier processes. Call it before entering the context."""
        self._before = (done_bytes, rows)

    def __enter__(self) -> RowProgress:
        self._began = self._clock()
        self._display = display_on(self._stream, self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._pending is not None:
                self._display.show(self._pending)
        finally:
            self._display.close()

    def update(self, done_bytes: int, rows: int) -> None:
        """Show the bytes of the input and the rows that are done, including those of earlier processes."""
        now = self._clock()
        bytes_before, rows_before = self._before
        seconds, fresh = now - self._began, done_bytes - bytes_before
        rate = (rows - rows_before) / seconds if seconds > 0 and rows > rows_before else math.nan
        left = (self._total - done_bytes) * seconds / fresh if fresh > 0 else math.nan
        self._pending = RowsDone(self._what, done_bytes, self._total, rows, rate, left)
        if now - self._shown_at >= self._display.interval:
            self._display.show(self._pending)
            self._pending, self._shown_at = None, now
