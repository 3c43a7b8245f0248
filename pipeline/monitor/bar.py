"""A progress bar for items that are processed one by one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TypeVar

from rich.console import Console
from rich.progress import track as rich_track

from pipeline.messages.terminal import drawn_on

K = TypeVar("K")
V = TypeVar("V")


def track(items: Mapping[K, V], what: str) -> Iterator[tuple[K, V]]:
    """Iterate over the items; show a bar and the time left on stderr if it is a terminal."""
    console = Console(file=drawn_on(sys.stderr))
    yield from rich_track(items.items(), what, console=console, disable=not console.is_terminal)
