"""Progress on a terminal: a line that is redrawn, and a bar for items that are processed one by one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.progress import track as rich_track
from rich.table import Column

from pipeline.messages.terminal import drawn_on, visible

LIVE_SECONDS = 0.1
K = TypeVar("K")
V = TypeVar("V")


class Live:
    """Display (see `progress.Plain`) of one line on a terminal, redrawn at each `show` in the caller's thread; messages
    scroll above it."""

    interval = LIVE_SECONDS

    def __init__(self, console: Console, total: int, to_stderr: bool) -> None:
        status = TextColumn("{task.fields[status]}", markup=False, table_column=Column(no_wrap=True))
        self._progress = RichProgress(
            BarColumn(bar_width=20),
            status,
            console=console,
            # With auto_refresh, rich would draw from another thread.
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=to_stderr,
        )
        self._task = self._progress.add_task("", total=total, status="starting")
        self._progress.start()

    def show(self, state: Any) -> None:
        self._progress.update(self._task, completed=state.done, total=state.total, status=state.text, refresh=True)

    def line(self, text: str) -> None:
        self._progress.console.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


def live_on(stream: TextIO, total: int) -> Live | None:
    """Display on a terminal; None if it cannot redraw a line."""
    console = Console(file=drawn_on(stream))
    return None if console.is_dumb_terminal else Live(console, total, stream is sys.stderr)


def track(items: Mapping[K, V], what: str) -> Iterator[tuple[K, V]]:
    """Iterate over items, with a bar and the time left on stderr if it is a terminal."""
    console = Console(file=drawn_on(sys.stderr))
    yield from rich_track(items.items(), what, console=console, disable=not console.is_terminal)
