"""Process-wide settings made by commands and by training. Importing the package makes none of them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

NOT_LINUX = (
    f"pipeline runs on Linux, and this is {sys.platform}: it needs the direct I/O and file locks of Linux. "
    "On macOS and Windows run it in a container or a virtual machine (on Windows: WSL 2)."
)
SPIN = "GOMP_SPINCOUNT"
SPIN_COUNT = "1000"
"""Number of times that a thread of torch's OpenMP checks for work before it sleeps. By default these threads spin for a
long time, which slows the other stages on the same cores: measured on two cores, a training step alongside a busy
thread is 2.2 times as fast with this value, and no slower alone."""

_commands: list[str] = []
"""Name of the program; empty unless this process is that of a command."""
_begun = False
"""True after training has set SPIN, in time or after a warning."""


def begin_command() -> None:
    """Set up this process as that of a command, before libraries start threads. Raises SystemExit, with a message, if
    the system is not Linux."""
    if sys.platform != "linux":
        raise SystemExit(NOT_LINUX)
    from pipeline.machine.memory import share_one_arena
    from pipeline.machine.signals import end_at_interrupt, send_dropped_again

    _commands.append(sys.argv[0])
    # Must precede all threads.
    share_one_arena()
    os.environ.setdefault(SPIN, SPIN_COUNT)
    end_at_interrupt()
    sys.unraisablehook = send_dropped_again


def is_command() -> bool:
    """True if this process is that of a command, not of a program that imports the package."""
    return bool(_commands)


@contextmanager
def brief_spinning() -> Iterator[None]:
    """Let OpenMP threads spin only briefly: those of torch, if it is first imported within this context, and those of
    processes started within it. The environment is restored at the end. Warns, once, if torch was imported earlier."""
    if SPIN in os.environ:
        yield
        return
    global _begun
    if "torch" in sys.modules and not _begun:
        warnings.warn(
            f"torch was imported before training could set {SPIN}, so that its threads may slow the other stages; "
            f"set {SPIN}={SPIN_COUNT} in the environment before Python starts",
            RuntimeWarning,
            stacklevel=5,
        )
    _begun = True
    os.environ[SPIN] = SPIN_COUNT
    try:
        yield
    finally:
        os.environ.pop(SPIN, None)
