"""Opening a commit for reading while training continues: nothing is written, repaired or deleted.

A reader holds a shared lock on the manifest, never the lock of the run. Training keeps commits with locked manifests
(`Commits.kept`), unless the disk cap would otherwise end the run: then it deletes the manifest, and the reader ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.commits.manifest import Commits, Manifest
from pipeline.errors import PipelineError
from pipeline.records import Array
from pipeline.storage.files import Files

LOCK_ATTEMPTS = 100
PAUSE_SECONDS = 0.01
"""Pause before choosing again, if the chosen commit was deleted before it could be locked."""


class GivenUp(PipelineError):
    """The commit held by a reader is gone: training deleted it to stay within the disk cap, the run was moved aside, or
    a repair deleted it as damaged."""

    resumes = False


class HeldCommit:
    """A commit that training keeps while this object is open. Also a context manager. Thread-safe."""

    def __init__(self, run_dir: Path, manifest: Manifest, descriptor: int) -> None:
        """`descriptor`: descriptor of the manifest file, with a shared lock."""
        self.run_dir, self.manifest, self._descriptor = run_dir, manifest, descriptor

    @property
    def number(self) -> int:
        return self.manifest.number

    def check(self) -> None:
        """Raises GivenUp if the commit was deleted, and ValueError if this object is closed. Otherwise, everything read
        before this call belongs to the commit, since a manifest is deleted before its chunks."""
        if self._descriptor < 0:
            raise ValueError(f"commit {self.number} of {self.run_dir} is closed; open it again")
        try:
            there = os.stat(Commits(self.run_dir, Files(), 1).manifest_file(self.number))
        except FileNotFoundError:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(self._descriptor)):
            raise GivenUp(
                f"commit {self.number} of {self.run_dir} is gone: training needed its disk space, the "
                "run was moved aside, or `verify --repair` found it damaged; raise storage.disk of that run, or read "
                "another commit"
            )

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Context in which an error caused by the deletion of the commit is raised as GivenUp."""
        try:
            yield
        except (OSError, PipelineError):
            self.check()
            raise

    def load_replicas(self) -> list[dict[str, Array]]:
        """Dense parts of all replicas, with optimizer state."""
        commits = Commits(self.run_dir, Files(), 1)
        with self.explaining():
            return [commits.load_dense(self.manifest, replica) for replica in range(len(self.manifest.dense))]

    def close(self) -> None:
        """Release the commit. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> HeldCommit:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def hold(run_dir: Path, which: str | int | None = None) -> HeldCommit:
    """Hold a commit of a run. `which`: "best", "last", or a number; None: the best commit if there is one, else the
    last. Raises ValueError if there is no such commit, and Damaged if its manifest is damaged."""
    if not (run_dir / "commits").is_dir():
        raise ValueError(f"{run_dir} holds no run: it has no folder `commits`; name the folder that a run has written")
    commits = Commits(run_dir, Files(), 1)
    for _ in range(LOCK_ATTEMPTS):
        path = commits.manifest_file(_choose(commits, which))
        with suppress(FileNotFoundError):
            if held := _lock(run_dir, path):
                return held
        time.sleep(PAUSE_SECONDS)
    raise ValueError(f"{path}: training is deleting this commit; name a later one, or raise commit.keep of that run")


def _choose(commits: Commits, which: str | int | None) -> int:
    numbers, run_dir = commits.numbers(), commits.folder.parent
    there_are = f"it has {', '.join(map(str, numbers))}"
    if not numbers:
        raise ValueError(f"{run_dir} has no commit yet; train until the first one is taken")
    if isinstance(which, int) or (which and re.fullmatch("[0-9]{1,18}", which)):
        if int(which) not in numbers:
            raise ValueError(f"{run_dir} has no commit {which}: {there_are}; name one of these, best or last")
        return int(which)
    if which not in (None, "best", "last"):
        raise ValueError(f"commit is {which!r}; expected best, last, or a number ({there_are})")
    if which != "last":
        for number in reversed(numbers):
            with suppress(FileNotFoundError):
                if Manifest.of(commits.manifest_file(number)).name == "best":
                    return number
        if which:
            raise ValueError(
                f"{run_dir} has no best commit, since no epoch was validated ({there_are}); use last, or a number"
            )
    return numbers[-1]


def _lock(run_dir: Path, path: Path) -> HeldCommit | None:
    """Lock a manifest; None if it is being deleted. Raises FileNotFoundError if it is already gone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        held = HeldCommit(run_dir, Manifest.of(path), descriptor)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    # The file may have been deleted between open and lock.
    if os.fstat(descriptor).st_nlink == 0:
        held.close()
        return None
    return held
