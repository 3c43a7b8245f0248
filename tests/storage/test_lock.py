"""One process at a time, and never locked out by a dead one."""

import os
import signal
import subprocess
import sys

import pytest

from pipeline.storage.lock import InUse, RunLock, lock_file

HOLD = """
import sys, time
from pathlib import Path
from pipeline.storage.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `run`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_one_process_locks_a_run_directory_until_it_dies(holder, tmp_path):
    with pytest.raises(InUse, match=rf"run is in use by process {holder.pid}; wait .*--out"):
        RunLock(tmp_path / "run")
    with RunLock(tmp_path / "other"):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with RunLock(tmp_path / "run") as lock:
        assert lock.path.read_text() == f"{os.getpid()}\n"


def test_one_process_cannot_lock_twice_until_it_releases(tmp_path):
    lock = RunLock(tmp_path / "run")
    with pytest.raises(InUse, match=f"process {os.getpid()};"):
        RunLock(tmp_path / "run")
    lock.release()
    lock.release()
    with RunLock(tmp_path / "run"):
        pass


def test_the_lock_stays_with_the_name_when_the_directory_moves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    with RunLock(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "run.1")
        with pytest.raises(InUse):
            RunLock((tmp_path / "run").relative_to(tmp_path))
        with RunLock(tmp_path / "run.1"):
            pass


def test_a_missing_run_directory_is_locked_without_being_made(tmp_path):
    with RunLock(tmp_path / "deep" / "er" / "run"):
        assert not (tmp_path / "deep" / "er" / "run").exists()


def test_a_link_to_a_run_directory_shares_its_lock(holder, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(InUse, match="in use by process"):
        RunLock(tmp_path / "link")


MINE = "a private file\n"


def linked(path, private):
    path.symlink_to(private)


FOREIGN = {
    "a link": linked,
    "a hard link": lambda path, private: path.hardlink_to(private),
    "a pipe": lambda path, private: os.mkfifo(path),
    "a folder": lambda path, private: path.mkdir(),
    "other text": lambda path, private: path.write_text("notes"),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_no_lock_is_refused_and_unchanged(tmp_path, make):
    private = tmp_path / "private"
    private.write_text(MINE)
    make(path := lock_file(tmp_path / "run"), private)
    before = os.lstat(path)
    with pytest.raises(ValueError, match=r"\.run\.lock is not a lock .*; move it away, or name another directory"):
        RunLock(tmp_path / "run")
    with RunLock(tmp_path / "run", reads=True):
        assert (private.read_text(), os.lstat(path)) == (MINE, before)


def test_readers_share_a_lock_that_they_never_write(holder, tmp_path):
    with pytest.raises(InUse, match=f"process {holder.pid};"):
        RunLock(tmp_path / "run", reads=True)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with RunLock(tmp_path / "run", reads=True) as lock, RunLock(tmp_path / "run", reads=True):
        assert lock.path.read_text() == f"{holder.pid}\n"
        with pytest.raises(InUse, match="in use by another process"):
            RunLock(tmp_path / "run")
    with RunLock(tmp_path / "other", reads=True) as lock:
        assert not lock.path.exists()
