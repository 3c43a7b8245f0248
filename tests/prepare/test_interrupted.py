"""Signals at any instant: a pause changes nothing, and an interrupt is one message or none. A disk that is full, or can
suddenly only be read, ends a preparation with one message; the same command resumes."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from support.data.preparations import ROOT, SPLIT, command, contents, prepare, wait_for, write_lines
from support.faults.small_disk import Disk, need_namespaces

PIECE = ("--piece-size", "50 KiB", "--workers", 1, *SPLIT)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("raw") / "day", "criteo", 5_000)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """Contents of the folder that an undisturbed preparation leaves."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert prepare("criteo", source, out, *PIECE) == 0
    return contents(out)


def ended_with_one_message(process):
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert [line.split(":")[0] for line in err.splitlines() if not line.endswith(" left")] == [
        "error", "finished parts stay"
    ], err  # fmt: skip
    return err


INSTANTS = [(".prepare/write/*.json", 3), ("train/*.parquet", 12)]


FAILURES = {
    "No space left on device": (Disk.fill, Disk.free, INSTANTS),
    "Read-only file system": (lambda disk: disk.remount("ro"), lambda disk: disk.remount("rw"), INSTANTS[:1]),
}
"""By the message: what happens to the disk, what repairs it, and at which instants it is tried."""


@pytest.mark.prove
@pytest.mark.parametrize(("said", "instant"), [(said, one) for said, (*_, some) in FAILURES.items() for one in some])
def test_a_rerun_completes_after_the_one_message_of_a_disk(tmp_path, source, whole, said, instant):
    need_namespaces()
    (pattern, count), (fail, repair, _) = instant, FAILURES[said]
    with Disk(tmp_path / "disk", "64m") as disk:
        process = disk.prepare("criteo", source, *PIECE)
        wait_for(process, disk.seen, pattern, count)
        fail(disk)
        assert said in ended_with_one_message(process)
        repair(disk)
        process = disk.prepare("criteo", source, *PIECE)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert contents(disk.seen) == whole


BEGUN = """
import runpy, sys
arguments, sys.argv = sys.argv, ["-m"]  # as `python -m` has it when it imports the package
import pipeline.prepare.main
sys.argv = arguments
print(flush=True)
runpy.run_module("pipeline", run_name="__main__")
"""


def interrupted(source, out, seconds):
    """The exit code, stdout and stderr of one that is interrupted so long after its modules were imported."""
    argv = [sys.executable, "-c", BEGUN, "prepare", *command("criteo", source, out, *PIECE)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.prove
def test_a_rerun_completes_after_an_interrupt_at_any_time(tmp_path, source, whole):
    random.seed(0)
    codes = set()
    for number in range(12):
        code, out, err = interrupted(source, tmp_path / "out", random.uniform(0.02, 0.3 * (1 + number)))
        assert "Traceback" not in err
        if code == 1:
            assert "SIGINT: ending after the parts" in err
            assert "stopped: finished parts stay" in out
        done = (tmp_path / "out" / "_prepared.json").exists()
        # One that comes while Python ends has its usual effect: nothing is left to be lost.
        assert code in (0, 1, 130) or (done and code == -signal.SIGINT), err
        codes.add(code)
        if done:
            break
    assert 1 in codes
    assert prepare("criteo", source, tmp_path / "out", *PIECE) == 0
    assert contents(tmp_path / "out") == whole
