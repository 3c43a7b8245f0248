"""Escaping of control characters in user-supplied names, which a terminal would otherwise interpret."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, TextIO

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters except tab and newline, other line terminators, and characters that change the text direction."""


def visible(text: str) -> str:
    """Text with its control characters escaped, such as \\x1b."""
    return OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def print_visibly() -> None:
    """Make stdout and stderr escape control characters. Code that draws on a terminal writes to `drawn_on(stream)`."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not hasattr(stream, "write_drawing"):
            write = stream.write
            changed: Any = stream
            changed.write_drawing = write
            changed.write = _visibly(write)


def _visibly(write: Callable[[str], int]) -> Callable[[str], int]:
    return lambda text: write(visible(text))


def drawn_on(stream: TextIO) -> Any:
    """Stream without the escaping of `print_visibly`, for code that moves the cursor or sets colours."""
    return _Drawn(stream) if hasattr(stream, "write_drawing") else stream


class _Drawn:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.write = stream.write_drawing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
