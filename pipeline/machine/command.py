"""End of a command: its last lines, its error in one line, and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pipeline.errors import PipelineError, error_text
from pipeline.machine.signals import heed_interrupts


def run_command(
    command: Callable[[], str | int | None], kept: str = "nothing was written", lower: str = "storage's caps",
    failed: int = 1, heeds: bool = False,
) -> int:  # fmt: skip
    """Run a command, print the text that it returns or its error, and return the exit code: 0, or the number that the
    command returns; `failed` after a PipelineError; 2 if an argument, the data or the disk is wrong; 130 if it was
    interrupted or returns None. `kept`: text that says what remains after an interrupt or a failure. `lower`: what
    takes memory and can be set lower. `heeds`: take interrupts from the start; else the command calls `heed_interrupts`
    after its imports."""
    if heeds:
        heed_interrupts()
    try:
        text = command()
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error, lower)}", file=sys.stderr)
        return 2
    except PipelineError as error:
        print("\n".join([f"error: {error}", *([kept] if error.resumes else [])]), file=sys.stderr)
        return failed
    except KeyboardInterrupt:
        text = None
    if text is None:
        print(f"interrupted: {kept}", file=sys.stderr)
        return 130
    if isinstance(text, int):
        return text
    if text:
        print(text)
    return 0
