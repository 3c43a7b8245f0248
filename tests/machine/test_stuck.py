"""Waits for files that do not answer are seen, named, and end; so does a process that a signal asked to."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from test_stop import ROOT

from pipeline.machine import stuck
from pipeline.machine.stuck import Stuck, check_stuck, doing, file_waits, gave_up, note_wait, watched


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "a pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def quick(monkeypatch):
    for name, seconds in (("CHECK", 0.02), ("SCAN", 0.05), ("REPORT", 0.1), ("END", 0.4)):
        monkeypatch.setattr(stuck, f"{name}_SECONDS", seconds)
    monkeypatch.setattr(stuck, "_gave_up", [])


def texts():
    return [text for _, text in file_waits().values()]


def seen(text):
    """Wait until a thread waits for this."""
    end = time.monotonic() + 5
    while text not in texts():
        assert time.monotonic() < end, texts()
        time.sleep(0.01)


def begun(*works):
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    return threads


def until_raised(call):
    for _ in range(1000):
        call()
        time.sleep(0.01)


def test_a_thread_that_waits_for_a_file_is_found(fifo):
    def reads():
        with open(fifo) as file:
            file.read()

    (reader,) = begun(reads)
    seen(f"opening {str(fifo)!r}")
    with open(fifo, "w"):
        seen(f"reading {str(fifo)!r}")
    reader.join()
    assert not any(str(fifo) in text for text in texts())


def test_a_thread_that_waits_for_a_lock_is_found(tmp_path):
    path = tmp_path / "lock"

    def locks():
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    with path.open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        (other,) = begun(locks)
        seen(f"locking {str(path)!r}")
    other.join()


def test_waits_for_other_things_are_not_reported():
    (read, write), (one, other), event = os.pipe(), socket.socketpair(), threading.Event()
    with one, other:
        threads = begun(lambda: os.read(read, 1), lambda: one.recv(1), event.wait, lambda: time.sleep(0.3))
        time.sleep(0.1)
        assert not texts()
        os.write(write, b"x")
        other.send(b"x")
        event.set()
        for thread in threads:
            thread.join()
    os.close(read)
    os.close(write)


def test_a_wait_is_reported_then_raises_where_one_waits(fifo, quick, capfd):
    def reads():
        with doing("prefetch of block 7"), open(fifo):
            pass

    with watched():
        (reader,) = begun(reads)
        with pytest.raises(
            Stuck, match=r"no answer for .* s, opening '.*a pipe' in prefetch of block 7: check whether"
        ):
            until_raised(check_stuck)
    assert gave_up()
    assert "no answer for 0 s, opening" in capfd.readouterr().err
    # A later call does not end because of what waits since then.
    with watched():
        time.sleep(0.6)
        check_stuck()
    fifo.open("w").close()
    reader.join()


def test_a_noted_wait_counts_from_its_last_progress(quick):
    with watched():
        for progress in range(8):
            note_wait("reads in flight", progress)
            time.sleep(0.1)
        with pytest.raises(Stuck, match="reads in flight"):
            until_raised(lambda: note_wait("reads in flight", 8))
        note_wait(None)
    assert "reads in flight" not in texts()


def test_time_that_a_process_was_paused_is_no_wait(fifo, quick, monkeypatch):
    monkeypatch.setattr(stuck, "END_SECONDS", 60)
    paused = 0.0
    monkeypatch.setattr(stuck, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + paused))
    with watched():
        (reader,) = begun(lambda: fifo.open().close())
        seen(f"opening {str(fifo)!r}")
        time.sleep(0.3)
        paused = 1000.0
        time.sleep(0.3)
        assert not gave_up()
    fifo.open("w").close()
    reader.join()


HANGS = """
import ctypes, signal
from pipeline.machine import stuck

signal.signal(signal.SIGINT, lambda *_: None)
stuck.SIGNAL_SECONDS = stuck.GRACE_SECONDS = 0.3
stuck.CHECK_SECONDS = 0.1
stuck.watch_process()
mutex = ctypes.create_string_buffer(64)
libc = ctypes.CDLL(None)
libc.pthread_mutex_lock(mutex)
with stuck.doing("commit 7"):
    print("waits", flush=True)
    # No signal handler of Python is called until this returns, which is never.
    libc.pthread_mutex_lock(mutex)
"""


def test_a_second_signal_ends_a_process_whose_main_thread_hangs():
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    said = process.stderr.readline()
    assert "SIGINT came 0 s ago, and this is not finished: commit 7; a second signal ends the process at once" in said
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


DROPS = """
import time
from pipeline.machine import stuck

stuck.GRACE_SECONDS = 0
stuck.watch_process()

class Slow:
    def __del__(self):
        print("in a finalizer", flush=True)
        time.sleep(10)

try:
    Slow()
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(0.5)
    print("the end")
"""


def test_an_interrupt_that_a_finalizer_drops_comes_again():
    process = subprocess.Popen(
        [sys.executable, "-c", DROPS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "in a finalizer\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("interrupted\nthe end\n", "")
    assert process.returncode == 0
