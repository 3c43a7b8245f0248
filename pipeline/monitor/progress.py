"""Progress of a run or a preparation: a live line on a terminal, or else a plain line every few seconds."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self, TextIO

PLAIN_SECONDS = 5.0
RECENT_SECONDS = 15.0
"""Period over which the rate is computed; it always spans at least two updates."""


class Shown(NamedTuple):
    """Content of one update: the amount done, the total, and the line to show."""

    done: int
    total: int
    text: str


class Plain:
    """Display for a log file or a pipe: one line per state. A terminal has `Live`, with the same methods."""

    interval = PLAIN_SECONDS
    """Minimum number of seconds from one `show` to the next."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, state: Shown) -> None:
        self.line(state.text)

    def line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


def display_on(stream: TextIO, total: int) -> Any:
    """Live display if the stream is a terminal that can redraw a line, or else plain lines."""
    if stream.isatty():
        # rich is imported only for a terminal.
        from pipeline.monitor.redrawn import live_on

        if display := live_on(stream, total):
            return display
    return Plain(stream)


class Updates:
    """Context manager that shows states on a stream (default: stderr), no more often than the display allows, and
    always the last one. Not thread-safe; starts no thread."""

    def __init__(self, total: int, stream: TextIO | None, clock: Callable[[], float]) -> None:
        self._total, self._stream, self._clock = total, stream, clock
        self._pending: Shown | None = None
        self._shown_at = -math.inf

    def __enter__(self) -> Self:
        self._display = display_on(self._stream if self._stream is not None else sys.stderr, self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._pending is not None:
                self._display.show(self._pending)
        finally:
            self._display.close()

    def line(self, text: str) -> None:
        """Print a message immediately, without disturbing the display."""
        self._display.line(text)

    def _show(self, done: int, text: str, now: float) -> None:
        self._pending = Shown(done, self._total, text)
        if now - self._shown_at >= self._display.interval:
            self._display.show(self._pending)
            self._pending, self._shown_at = None, now


class Progress(Updates):
    """Progress of a run, in examples of training and evaluation."""

    def __init__(
        self, total_examples: int, stream: TextIO | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(total_examples, stream, clock)
        self._recent: deque[tuple[float, int]] = deque()
        self._newest: tuple[int, float, float | None] | None = None

    def begin_at(self, examples_done: int) -> None:
        """Ignore the number of examples done by earlier sessions of the run; a subclass may keep it. Called before the
        context is entered."""

    def update(self, examples_done: int, loss: float | None) -> None:
        """Show the state of a run: examples done since its start, and the loss of the block (None if it has none)."""
        now = self._clock()
        self._newest = examples_done, self._rate(now, examples_done), loss
        self._show(examples_done, run_line(self._total, *self._newest), now)

    def end_at(self, total_examples: int) -> None:
        """Change the total of a run that ends early."""
        self._total = total_examples
        if self._newest:
            self._pending = Shown(self._newest[0], total_examples, run_line(total_examples, *self._newest))

    def _rate(self, now: float, done: int) -> float:
        """Examples per second over the recent updates, including this one; nan for the first update, since the time
        before it was spent on preparation."""
        self._recent.append((now, done))
        while len(self._recent) > 2 and now - self._recent[1][0] >= RECENT_SECONDS:
            self._recent.popleft()
        since, before = self._recent[0]
        return (done - before) / (now - since) if now > since else math.nan


class RowProgress(Updates):
    """Progress of a preparation, in bytes of the input. Rates are averages since the context was entered."""

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
        """Show the input bytes and rows done, including those of earlier processes."""
        now = self._clock()
        bytes_before, rows_before = self._before
        seconds, fresh = now - self._began, done_bytes - bytes_before
        rate = (rows - rows_before) / seconds if seconds > 0 and rows > rows_before else math.nan
        left = (self._total - done_bytes) * seconds / fresh if fresh > 0 else math.nan
        share = f"{done_bytes / self._total:4.0%}"
        self._show(done_bytes, f"{self._what}  {rows:,} rows  {_whole(rate)}/s  {share}  {clock_time(left)} left", now)


def run_line(total: int, done: int, rate: float, loss: float | None) -> str:
    """Progress line of a run. `rate`: examples per second, nan while unknown."""
    left = (total - done) / rate if rate > 0 else math.nan
    of_loss = "" if loss is None else f"  loss {loss:.4f}"
    return f"{done:,}/{total:,} examples  {_whole(rate)}/s now{of_loss}  {clock_time(left)} left"


def _whole(rate: float) -> str:
    return "-" if math.isnan(rate) else f"{rate:,.0f}"


def clock_time(seconds: float) -> str:
    """Format seconds as `0:25`, `12:03` or `1:02:03`; `-:--` for nan."""
    if math.isnan(seconds):
        return "-:--"
    minutes, second = divmod(math.ceil(max(seconds, 0.0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
