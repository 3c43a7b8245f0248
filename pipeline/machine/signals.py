"""End of a command: its last lines, its error in one line, its exit code; and stopping by signal. The first signal asks
the run to end at a commit, the second ends it immediately, even if a thread waits for a file that does not answer. A
signal while modules are imported ends the process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import PipelineError, error_text

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_at_interrupt() -> None:
    """Make SIGINT end the process with one line of text until `heed_interrupts` is called: an exception in the middle
    of an import would print some library's traceback."""
    # If the process was started with the signal ignored, keep ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def heed_interrupts() -> None:
    """Make the first SIGINT raise KeyboardInterrupt, and the second end the process: the end of a command waits for its
    threads."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _interrupt)


def _end(number: int, frame: Any) -> None:
    os.write(2, b"interrupted before anything was begun\n")
    os._exit(128 + number)


def _interrupt(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def send_dropped_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a SIGINT again whose KeyboardInterrupt was raised within a finalizer or a callback, where Python drops all
    exceptions. For `sys.unraisablehook`."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        return sys.__unraisablehook__(dropped)

    def again() -> None:
        # If the process is already ending, a signal would change its exit code.
        if threading.main_thread().is_alive():
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, _interrupt)
    threading.Timer(0.1, again).start()
    return None


def exit_code(name: str) -> int:
    """Exit code of a process ended by a signal, as in shells: 130 for SIGINT, 143 for SIGTERM, 141 for SIGPIPE."""
    return 128 + signal.Signals[name]


def discard_output() -> str:
    """Discard all further output, since its reader is gone. Returns the name of the signal that means this."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    return "SIGPIPE"


def interruption(name: str) -> BaseException:
    """Make the exception that represents a signal: KeyboardInterrupt for SIGINT, else SystemExit."""
    return KeyboardInterrupt() if name == "SIGINT" else SystemExit(exit_code(name))


@contextmanager
def on_signal(stop: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` with the signal's name at the first SIGINT or SIGTERM; the next one ends the process immediately: a
    commit is safe against a kill at any instruction, so no cleanup is needed.

    Does nothing outside the main thread, since Python allows handlers only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def first(number: int, frame: Any) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        stop(signal.Signals(number).name)

    for number in SIGNALS:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
