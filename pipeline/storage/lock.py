"""Lock on a run directory, so that only one process at a time writes to it."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class InUse(ValueError):
    """Raised if another process holds the lock; names that process."""


def lock_file(run_dir: Path) -> Path:
    """Path of the lock of a run directory. The file contains the PID of the process that locked it last."""
    run_dir = run_dir.resolve()
    return run_dir.with_name(f".{run_dir.name}.lock")


class RunLock:
    """Lock on a file next to the run directory, so that moving the directory does not move the lock. The operating
    system releases it when the owning process ends, even if killed. Also a context manager."""

    def __init__(self, run_dir: Path) -> None:
        self.path = lock_file(run_dir)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._descriptor, 64).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise InUse(
                f"{run_dir} is in use by process {owner}; wait for it to end, or name another directory with --out"
            ) from None
        # The lock is valid even if the disk is too full to store the owner's PID: `verify` must be able to run there.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
