"""One process at a time, and never locked out by a dead one."""

import os
import signal
import subprocess
import sys

import pytest

from pipeline.storage.lock import InUse, RunLock

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
