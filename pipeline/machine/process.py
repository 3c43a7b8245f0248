"""Process-wide settings made by commands and by training. Importing the package makes none of them."""

from __future__ import annotations

import ctypes
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
    from pipeline.machine.signals import end_at_interrupt, send_dropped_again

    # First, and before anything that takes long to import: an interrupt may come at any time.
    end_at_interrupt()
    _commands.append(sys.argv[0])
    # Must precede all threads.
    share_one_arena()
    os.environ.setdefault(SPIN, SPIN_COUNT)
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


def share_one_arena() -> None:
    """Make all threads allocate from the C allocator's main arena. Only this arena can grow beyond 64 MiB; a thread
    with another arena pays for the page faults of every large block. Existing threads keep their arena. A no-op without
    glibc."""
    _mallopt((-8, 1))


def keep_freed_memory() -> None:
    """Make the C allocator reuse large freed blocks instead of returning them to the system.

    Each training step frees and reallocates the gradients of its embeddings (14 MB for 8,192 examples of 26 fields of
    16). Without this setting, every step pays for their page faults: 7 of 29 ms as measured, and almost half of the
    step with batches of 32,768. A no-op without glibc.
    """
    mmap_max, trim_threshold = -4, -1
    _mallopt((mmap_max, 0), (trim_threshold, 2**31 - 1))


def return_freed_memory() -> None:
    """Return the freed blocks that the C allocator keeps to the system, once. A no-op without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _mallopt(*settings: tuple[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in settings:
            mallopt(option, value)
