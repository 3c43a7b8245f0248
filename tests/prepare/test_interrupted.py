"""An interrupt at any event is one message or none, and changes nothing. A disk that is full, or can suddenly only be
read, ends a preparation with one message; the same command resumes."""

import os
import random
import subprocess
import sys

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


AT_AN_EVENT = """
import os, pathlib, runpy, signal, sys
arguments, sys.argv = sys.argv, ["-m"]  # as `python -m` has it when it imports the package
import pipeline.prepare.main
number, counter, *arguments = arguments[1:]
sys.argv = ["-m", *arguments]
seen = []

def count(event, args):
    if event in ("open", "os.mkdir", "os.rename", "os.remove"):
        seen.append(event)
        if len(seen) == int(number):
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(count)
try:
    runpy.run_module("pipeline", run_name="__main__")
finally:
    pathlib.Path(counter).write_text(str(len(seen)))
"""
"""A preparation whose process gets SIGINT when it opens, makes, renames or removes a file for the n-th time (0: never),
by Python's audit events; it writes the number of these events into a file."""


def interrupted(source, out, number):
    """Exit code, stdout, stderr and number of events of a preparation that is interrupted at an event."""
    counter = out.with_name("counter")
    argv = [sys.executable, "-c", AT_AN_EVENT, number, counter, "prepare", *command("criteo", source, out, *PIECE)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*map(str, argv)], env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr, int(counter.read_text())


@pytest.mark.prove
def test_a_rerun_completes_after_an_interrupt_at_any_event(tmp_path, source, whole):
    draw = random.Random(0)
    code, _, err, events = interrupted(source, tmp_path / "undisturbed", 0)
    assert code == 0, err
    codes = set()
    for attempt in range(8):
        out = tmp_path / f"out{attempt // 2}"  # the second attempt resumes the first
        code, said, err, _ = interrupted(source, out, draw.randrange(1, 2 * events // 3))
        assert "Traceback" not in err
        assert code in (0, 1, 130), err
        if code == 1:
            assert "SIGINT: ending after the parts" in err
            assert "stopped: finished parts stay" in said
        codes.add(code)
        if attempt % 2:
            assert prepare("criteo", source, out, *PIECE) == 0
            assert contents(out) == whole
    assert 1 in codes
