"""Signals at any instant: a pause changes nothing, and an interrupt is one message or none."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from support.data.preparations import ROOT, SPLIT, command, contents, prepare, start, wait_for, write_lines

PIECE = ("--piece-size", "50 KiB", "--workers", 2, *SPLIT)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("raw") / "day", "criteo", 5_000)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    assert prepare("criteo", source, out, *PIECE) == 0
    return contents(out)


@pytest.mark.prove
def test_a_pause_longer_than_dask_waits_changes_nothing(tmp_path, source, whole):
    """As a laptop that sleeps has it."""
    short = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "3s"}
    with start("criteo", source, tmp_path / "out", *PIECE, environment=short) as process:
        wait_for(process, tmp_path / "out", ".prepare/write/*.json")
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        process.send_signal(signal.SIGCONT)
        try:
            _, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, err
    assert contents(tmp_path / "out") == whole


BEGUN = """
import runpy, sys
arguments, sys.argv = sys.argv, ["-m"]  # as `python -m` has it when it imports the package
import pipeline.prepare.main
sys.argv = arguments
print(flush=True)
runpy.run_module("pipeline.prepare", run_name="__main__")
"""


def interrupted(source, out, seconds):
    """The exit code and stderr of one that is interrupted so long after its modules were imported."""
    argv = [sys.executable, "-c", BEGUN, *command("criteo", source, out, *PIECE)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.prove
def test_a_rerun_completes_after_an_interrupt_at_any_time(tmp_path, source, whole):
    random.seed(0)
    codes = set()
    for number in range(12):
        code, err = interrupted(source, tmp_path / "out", random.uniform(0.02, 0.3 * (1 + number)))
        assert "Traceback" not in err
        done = (tmp_path / "out" / "_prepared.json").exists()
        # One that comes while Python ends has its usual effect: nothing is left to be lost.
        assert code in (0, 1, 130) or (done and code == -signal.SIGINT), err
        codes.add(code)
        if done:
            break
    assert 1 in codes
    assert prepare("criteo", source, tmp_path / "out", *PIECE) == 0
    assert contents(tmp_path / "out") == whole
