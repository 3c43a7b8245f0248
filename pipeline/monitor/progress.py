"""Progress of a run while it runs: a live line on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from pipeline.messages.terminal import drawn_on, visible

PLAIN_SECONDS = 5.0
LIVE_SECONDS = 0.1
RECENT_SECONDS = 15.0
"""Period over which the rate is computed; it always spans at least two updates."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Content of one update. `done` and `total` are examples, `rate` is examples per second (nan while unknown),
    `ready` is the number of staged blocks."""

    done: int
    total: int
    rate: float
    loss: float | None
    ready: int

    def __str__(self) -> str:
        rate = "-" if math.isnan(self.rate) else f"{self.rate:,.0f}"
        left = (self.total - self.done) / self.rate if self.rate > 0 else math.nan
        parts = [
            f"{self.done:,}/{self.total:,} examples",
            f"{rate}/s",
            *([] if self.loss is None else [f"loss {self.loss:.4f}"]),
            f"{self.ready} blocks ahead",
            f"{clock_time(left)} left",
        ]
        return "  ".join(parts)


def clock_time(seconds: float) -> str:
    """Format seconds as `0:25`, `12:03` or `1:02:03`; `-:--` for nan."""
    if math.isnan(seconds):
        return "-:--"
    minutes, second = divmod(math.ceil(max(seconds, 0.0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Shown(Protocol):
    """Content of one update as a display sees it: its `str`, and the amount done of the total."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...


class Display(Protocol):
    """Output of progress; `close` leaves the last state visible."""

    interval: float
    """Minimum number of seconds from one `show` to the next."""

    def show(self, state: Shown) -> None: ...
    def line(self, text: str) -> None: ...
    def close(self) -> None: ...


class Plain:
    """Display for a log file or a pipe: one line per state."""

    interval = PLAIN_SECONDS

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, state: Shown) -> None:
        self.line(str(state))

    def line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class Live:
    """Display of one line on a terminal, redrawn at each `show` in the caller's thread; messages scroll above it."""

    interval = LIVE_SECONDS

    def __init__(self, console: Console, total: int, to_stderr: bool) -> None:
        status = TextColumn("{task.fields[status]}", markup=False, table_column=Column(no_wrap=True))
        self._progress = RichProgress(
            BarColumn(bar_width=20),
            status,
            console=console,
            # With auto_refresh, rich would draw from a thread of its own.
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=to_stderr,
        )
        self._task = self._progress.add_task("", total=total, status="starting")
        self._progress.start()

    def show(self, state: Shown) -> None:
        self._progress.update(self._task, completed=state.done, total=state.total, status=str(state), refresh=True)

    def line(self, text: str) -> None:
        self._progress.console.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


def display_on(stream: TextIO, total: int) -> Display:
    """Live display if the stream is a terminal that can redraw a line, else plain lines."""
    console = Console(file=drawn_on(stream))
    live = stream.isatty() and not console.is_dumb_terminal
    return Live(console, total, stream is sys.stderr) if live else Plain(stream)


class Updates:
    """Context manager that shows states on a stream (default: stderr): not more often than the display wants, and the
    last one at the end. Not thread-safe; starts no thread."""

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
        """Print a message at once, without disturbing the display."""
        self._display.line(text)

    def _show(self, state: Shown, now: float) -> None:
        self._pending = state
        if now - self._shown_at >= self._display.interval:
            self._display.show(state)
            self._pending, self._shown_at = None, now


class Progress(Updates):
    """Progress of a run."""

    def __init__(
        self, total_examples: int, stream: TextIO | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(total_examples, stream, clock)
        self._recent: deque[tuple[float, int]] = deque()
        self._newest: TrainingProgress | None = None

    def begin_at(self, examples_done: int) -> None:
        """Do nothing with the number of examples that earlier sessions of the run did; a subclass may keep it. Called
        before the context is entered."""

    def update(self, examples_done: int, loss: float | None, ready: int) -> None:
        """Show the state of a run: examples done in all of it, the block's loss (None: it has none), staged blocks
        ahead of it."""
        now = self._clock()
        self._newest = TrainingProgress(examples_done, self._total, self._rate(now, examples_done), loss, ready)
        self._show(self._newest, now)

    def end_at(self, total_examples: int) -> None:
        """Change the total, since a run ends early."""
        self._total = total_examples
        if self._newest:
            self._pending = replace(self._newest, total=total_examples)

    def _rate(self, now: float, done: int) -> float:
        """Examples per second over the recent updates, this one included; nan at the first one, since the time before
        it is spent on preparations."""
        self._recent.append((now, done))
        while len(self._recent) > 2 and now - self._recent[1][0] >= RECENT_SECONDS:
            self._recent.popleft()
        since, before = self._recent[0]
        return (done - before) / (now - since) if now > since else math.nan
