"""Lock on a run directory, so that only one process at a time writes to it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Errors on opening a link, a folder or a socket."""


class InUse(ValueError):
    """Raised if another process holds the lock; names that process."""


def lock_file(run_dir: Path) -> Path:
    """Path of the lock of a run directory. The file contains the PID of the process that locked it last."""
    run_dir = run_dir.resolve()
    return run_dir.with_name(f".{run_dir.name}.lock")


class RunLock:
    """Lock on a file next to the run directory, so that moving the directory does not move the lock. The operating
    system releases it when the owning process ends, even if killed. Also a context manager."""

    def __init__(self, run_dir: Path, reads: bool = False) -> None:
        """`reads`: the directory is only read, and may be somebody else's. Then nothing is written, several readers
        share the lock, and there is none if its file cannot be opened. Raises InUse, and ValueError if the file is
        something else."""
        self.path, self._descriptor = lock_file(run_dir), -1
        if not reads:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        # In a folder to which others can write, the name may belong to a link to a private file, or to a pipe.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_RDONLY if reads else os.O_RDWR | os.O_CREAT)
        try:
            self._descriptor = os.open(self.path, flags, 0o644)
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if reads else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip()
            lives = owner.isdecimal() and os.path.exists(f"/proc/{owner}")
            self.release()
            raise InUse(
                f"{run_dir} is in use by {f'process {owner}' if lives else 'another process'}; wait for it to end, or "
                "name another directory with --out"
            ) from None
        except OSError as error:
            self.release()
            if reads:
                return
            raise self._not_ours() if error.errno in NO_FILE else error from None
        if not reads:
            self._sign()

    def _sign(self) -> None:
        """Write the PID of this process to the file. Raises ValueError if another program or user has made the file."""
        found, users = os.fstat(self._descriptor), (os.geteuid(), self.path.parent.stat().st_uid)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid in users
        if not (is_ours and re.fullmatch(rb"\d{0,20}\n?", os.pread(self._descriptor, 64, 0))):
            self.release()
            raise self._not_ours()
        # The lock is valid even if the disk is too full to store the owner's PID: `verify` must be able to run there.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _not_ours(self) -> ValueError:
        return ValueError(
            f"{self.path} is not a lock that a command of yours has made: a link or no file, somebody else's, or with "
            "other text than a process number; move it away, or name another directory with --out"
        )

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
